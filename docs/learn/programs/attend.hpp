// One strip from its queries to its outputs.
#pragma once

#include <cmath>

#include "strip.hpp"

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

// Divides by the sums, and writes rows of output again.
inline void finish(Strip& s, float* output, int first) {
  for (int lane = 0; lane < kQueries; ++lane)
    for (int d = 0; d < kDim; ++d)
      output[(first + lane) * kDim + d] =
          s.output[d * kQueries + lane] / s.l[lane / kLanes][lane % kLanes];
}

// The queries from `first` on see every key.
inline void attend(const float* query, const float* key, const float* value,
                   float* output, int length, int first) {
  Strip s;
  begin(s, query, first);
  for (int at = 0; at < length; at += kKeys)
    add_keys(s, key + at * kDim, value + at * kDim, kKeys, [](Tile&, int) {});
  finish(s, output, first);
}
