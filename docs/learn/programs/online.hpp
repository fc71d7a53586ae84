// The online softmax in lanes: a block of keys moves the references of the strip that sees it.
#pragma once

#include "strip.hpp"

inline void add_keys_online(Strip& s, const float* key, const float* value, int keys) {
  Vec top[kVectors] = {s.m[0], s.m[1], s.m[2]};
  for (int k = 0; k < keys; k += kRows) {
    Tile scores{};
    multiply<kVectors>(scores, key + k * kDim, kDim, 1, s.query, kDim);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        top[v] = scores[r][v] > top[v] ? scores[r][v] : top[v];
    store_tile<kVectors>(scores, s.weights + k * kQueries);
  }
  for (int v = 0; v < kVectors; ++v) {
    const Vec factor = exp2(s.m[v] - top[v]);  // of everything that was gathered before
    s.m[v] = top[v];
    s.l[v] *= factor;
    for (float* at = s.output + v * kLanes; at < s.output + kDim * kQueries; at += kQueries)
      store(at, load(at) * factor);
    for (float* at = s.weights + v * kLanes; at < s.weights + keys * kQueries; at += kQueries) {
      const Vec weight = exp2(load(at) - s.m[v]);
      s.l[v] += weight;
      store(at, weight);
    }
  }
  add_values(s, value, keys);
}
