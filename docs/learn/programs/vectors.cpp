// As many queries side by side as a vector has lanes: one instruction serves all of them.
#include <vector>

#include "columns.hpp"
#include "vector.hpp"

// `length` is a multiple of kLanes.
extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length) {
  const float scale = 1 / std::sqrt(float(kDim));
  std::vector<float> weights(length * kLanes);
  float packed[kDim * kLanes], sums[kLanes];
  for (int first = 0; first < length; first += kLanes) {
    for (int d = 0; d < kDim; ++d)  // packing: the same dimension of all queries is contiguous
      for (int lane = 0; lane < kLanes; ++lane)
        packed[d * kLanes + lane] = query[(first + lane) * kDim + d] * scale;

    for (int j = 0; j < length; ++j) {
      Vec score{};
      for (int d = 0; d < kDim; ++d)
        score += broadcast(key[j * kDim + d]) * load(packed + d * kLanes);  // one FMA
      store(&weights[j * kLanes], score);
    }
    softmax_of_columns(weights.data(), length, kLanes, sums);
    for (int d = 0; d < kDim; ++d) {
      Vec sum{};
      for (int j = 0; j < length; ++j)
        sum += broadcast(value[j * kDim + d]) * load(&weights[j * kLanes]);
      for (int lane = 0; lane < kLanes; ++lane)
        output[(first + lane) * kDim + d] = sum[lane] / sums[lane];
    }
  }
}
