// A reference that rarely moves: scores become weights while they are in registers.
#pragma once

#include "strip.hpp"

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

// Adds the block of keys at `key`. `hide(scores, k)` may set scores of the tile of keys from k
// on to -inf, which a lane's very first score must not be.
template <class Hide>
inline void add_keys(Strip& s, const float* key, const float* value, int keys, Hide hide) {
  for (int k = 0; k < keys; k += kRows) {
    Tile scores{};
    multiply<kVectors>(scores, key + k * kDim, kDim, 1, s.query, kDim);
    hide(scores, k);
    Bits exceeds{};
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) exceeds |= scores[r][v] > s.m[v] + 8.0f;
    int any = 0;
    for (int lane = 0; lane < kLanes; ++lane) any |= exceeds[lane];
    if (__builtin_expect(any, 0)) move_references(scores, s, k);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) s.l[v] += scores[r][v] = exp2(scores[r][v] - s.m[v]);
    store_tile<kVectors>(scores, s.weights + k * kQueries);
  }
  add_values(s, value, keys);
}
