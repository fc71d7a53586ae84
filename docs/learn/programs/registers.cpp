// Both products in tiles of registers; softmax still one number at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tile.hpp"

// `length` is a multiple of kQueries and of kRows.
extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length) {
  const float scale = 1 / std::sqrt(float(kDim));
  std::vector<float> packed(kDim * kQueries), result(kDim * kQueries);
  std::vector<float> weights(length * kQueries);
  for (int first = 0; first < length; first += kQueries) {
    for (int d = 0; d < kDim; ++d)
      for (int lane = 0; lane < kQueries; ++lane)
        packed[d * kQueries + lane] = query[(first + lane) * kDim + d] * scale;

    for (int j = 0; j < length; j += kRows) {
      Tile scores{};
      multiply(scores, key + j * kDim, kDim, 1, packed.data(), kDim);
      store_tile(scores, &weights[j * kQueries]);
    }

    float sums[kQueries];
    for (int lane = 0; lane < kQueries; ++lane) {
      float* column = &weights[lane];
      float largest = *column, sum = 0;
      for (int j = 1; j < length; ++j) largest = std::max(largest, column[j * kQueries]);
      for (int j = 0; j < length; ++j)
        sum += column[j * kQueries] = std::exp(column[j * kQueries] - largest);
      sums[lane] = sum;
    }

    for (int d = 0; d < kDim; d += kRows) {
      Tile sum{};
      multiply(sum, value + d, 1, kDim, weights.data(), length);
      store_tile(sum, &result[d * kQueries]);
    }
    for (int lane = 0; lane < kQueries; ++lane)
      for (int d = 0; d < kDim; ++d)
        output[(first + lane) * kDim + d] = result[d * kQueries + lane] / sums[lane];
  }
}
