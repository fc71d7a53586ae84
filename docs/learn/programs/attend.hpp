// One strip, from its queries to its outputs.
#pragma once

#include "reference.hpp"

// The queries from `first` on see every key.
inline void attend(const float* query, const float* key, const float* value,
                   float* output, int length, int first) {
  Strip s;
  begin(s, query, first);
  for (int at = 0; at < length; at += kKeys)
    add_keys(s, key + at * kDim, value + at * kDim, kKeys, [](Tile&, int) {});
  finish(s, output, first);
}
