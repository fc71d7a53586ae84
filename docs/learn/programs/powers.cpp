// Softmax in vectors of queries: three passes down the columns of all scores of a strip.
#include <vector>

#include "strip.hpp"

// `length` is a multiple of kQueries and of kKeys.
extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length) {
  Strip s;
  std::vector<float> weights(length * kQueries);
  for (int first = 0; first < length; first += kQueries) {
    begin(s, query, first);
    for (int j = 0; j < length; j += kRows) {
      Tile scores{};
      multiply<kVectors>(scores, key + j * kDim, kDim, 1, s.query, kDim);
      store_tile<kVectors>(scores, &weights[j * kQueries]);
    }
    for (int v = 0; v < kVectors; ++v) {
      float* column = &weights[v * kLanes];
      for (int j = 0; j < length; ++j) {
        const Vec score = load(column + j * kQueries);
        s.m[v] = score > s.m[v] ? score : s.m[v];
      }
      for (int j = 0; j < length; ++j) {
        const Vec weight = exp2(load(column + j * kQueries) - s.m[v]);
        s.l[v] += weight;
        store(column + j * kQueries, weight);
      }
    }
    for (int d = 0; d < kDim; d += kRows) {
      Tile sum{};
      multiply<kVectors>(sum, value + d, 1, kDim, weights.data(), length);
      store_tile<kVectors>(sum, s.output + d * kQueries);
    }
    finish(s, output, first);
  }
}
