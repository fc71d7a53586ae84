// A block of keys for a strip of queries: scores become weights in registers, then outputs.
#pragma once

#include "reference.hpp"

// Adds the block of keys at `key`. `hide(scores, k)` may set scores of the tile of keys from k
// on to -inf, which a lane's very first score must not be.
template <class Hide>
inline void add_keys(Strip& s, const float* key, const float* value, int keys, Hide hide) {
  for (int k = 0; k < keys; k += kRows) {
    Tile scores{};
    multiply(scores, key + k * kDim, kDim, 1, s.query, kDim);
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
    store_tile(scores, s.weights + k * kQueries);
  }
  for (int d = 0; d < kDim; d += kRows) {
    Tile sum{};
    multiply(sum, value + d, 1, kDim, s.weights, keys);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] += load(s.output + (d + r) * kQueries + v * kLanes);
    store_tile(sum, s.output + d * kQueries);
  }
}
