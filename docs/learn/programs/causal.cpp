// Causal attention: each strip ends at its last key, and only tiles at the diagonal compare.
#include <algorithm>

#include "attend.hpp"
#include "tasks.hpp"

// Query `first` + lane sees keys 0 to `first` + lane.
static void attend_causally(const float* query, const float* key, const float* value,
                            float* output, int first) {
  Bits lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  Strip s;
  begin(s, query, first);
  const int end = first + kQueries;  // of the interval of keys that some lane sees
  for (int at = 0; at < end; at += kKeys) {
    const auto hide = [=](Tile& scores, int k) {
      if (at + k + kRows - 1 <= first) return;  // every lane sees the whole tile
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
          const Bits sees = lanes + (first + v * kLanes) >= at + k + r;
          scores[r][v] = sees ? scores[r][v] : broadcast(-INFINITY);
        }
    };
    add_keys(s, key + at * kDim, value + at * kDim, std::min(kKeys, end - at), hide);
  }
  finish(s, output, first);
}

extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length, int threads) {
  const int strips = length / kQueries;
  // The last strips see the most keys. They begin first, so that no thread waits for them at the end.
  in_parallel(strips, threads, [=](int task) {
    attend_causally(query, key, value, output, (strips - 1 - task) * kQueries);
  });
}
