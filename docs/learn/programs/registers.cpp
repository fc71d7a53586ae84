// Both products in tiles of registers; softmax still one number at a time.
#include <vector>

#include "columns.hpp"
#include "tile.hpp"

// `length` is a multiple of kQueries and of kRows.
extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length) {
  const float scale = 1 / std::sqrt(float(kDim));
  std::vector<float> packed(kDim * kQueries), result(kDim * kQueries);
  std::vector<float> weights(length * kQueries);
  float sums[kQueries];
  for (int first = 0; first < length; first += kQueries) {
    for (int d = 0; d < kDim; ++d)
      for (int lane = 0; lane < kQueries; ++lane)
        packed[d * kQueries + lane] = query[(first + lane) * kDim + d] * scale;

    for (int j = 0; j < length; j += kRows) {  // rows are keys
      Tile scores{};
      multiply<kVectors>(scores, key + j * kDim, kDim, 1, packed.data(), kDim);
      store_tile<kVectors>(scores, &weights[j * kQueries]);
    }
    softmax_of_columns(weights.data(), length, kQueries, sums);
    for (int d = 0; d < kDim; d += kRows) {  // rows are dimensions
      Tile sum{};
      multiply<kVectors>(sum, value + d, 1, kDim, weights.data(), length);
      store_tile<kVectors>(sum, &result[d * kQueries]);
    }
    for (int lane = 0; lane < kQueries; ++lane)
      for (int d = 0; d < kDim; ++d)
        output[(first + lane) * kDim + d] = result[d * kQueries + lane] / sums[lane];
  }
}
