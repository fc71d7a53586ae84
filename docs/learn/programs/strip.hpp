// A strip of queries: what it keeps of the keys that it has seen, its beginning and its end.
#pragma once

#include <cmath>

#include "exp2.hpp"
#include "tile.hpp"

struct Strip {
  Vec m[kVectors], l[kVectors];  // a weight is 2^(score - m), l is the sum of weights
  alignas(64) float query[kDim * kQueries], output[kDim * kQueries];
  alignas(64) float weights[kKeys * kQueries];
};

// Packs the queries from `first` on, times the scale and log2(e), since e^x = 2^(x log2(e)).
inline void begin(Strip& s, const float* query, int first) {
  const float factor = 1.44269504f / std::sqrt(float(kDim));
  for (int d = 0; d < kDim; ++d)
    for (int lane = 0; lane < kQueries; ++lane) {
      s.query[d * kQueries + lane] = query[(first + lane) * kDim + d] * factor;
      s.output[d * kQueries + lane] = 0;
    }
  for (int v = 0; v < kVectors; ++v) {
    s.m[v] = broadcast(-INFINITY);
    s.l[v] = Vec{};
  }
}

// output += weights * values of a block of keys.
inline void add_values(Strip& s, const float* value, int keys) {
  for (int d = 0; d < kDim; d += kRows) {
    Tile sum{};
    multiply<kVectors>(sum, value + d, 1, kDim, s.weights, keys);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] += load(s.output + (d + r) * kQueries + v * kLanes);
    store_tile<kVectors>(sum, s.output + d * kQueries);
  }
}

// Divides by the sums, and writes rows of output again.
inline void finish(Strip& s, float* output, int first) {
  for (int lane = 0; lane < kQueries; ++lane)
    for (int d = 0; d < kDim; ++d)
      output[(first + lane) * kDim + d] =
          s.output[d * kQueries + lane] / s.l[lane / kLanes][lane % kLanes];
}
