// What a strip keeps of the keys that it has seen, and the reference that rarely moves.
#pragma once

#include "exp2.hpp"

struct Strip {
  Vec m[kVectors], l[kVectors];  // a weight is 2^(score - m), l is the sum of weights
  alignas(64) float query[kDim * kQueries], output[kDim * kQueries];
  alignas(64) float weights[kKeys * kQueries];
};

// For scores that exceed m by more than 8: moves m there, and rescales what was gathered.
__attribute__((noinline)) inline void move_references(const Tile& scores, Strip& s,
                                                      int keys) {
  for (int v = 0; v < kVectors; ++v) {
    Vec top = scores[0][v];
    for (int r = 1; r < kRows; ++r) top = scores[r][v] > top ? scores[r][v] : top;
    const Vec moved = top > s.m[v] + 8.0f ? top : s.m[v];
    const Vec factor = exp2(s.m[v] - moved);
    s.m[v] = moved;
    s.l[v] *= factor;
    const auto rescale = [=](float* rows, int count) {
      for (float* at = rows + v * kLanes; count > 0; --count, at += kQueries)
        store(at, load(at) * factor);
    };
    rescale(s.output, kDim);
    rescale(s.weights, keys);
  }
}
