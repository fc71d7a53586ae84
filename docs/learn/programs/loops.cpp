// Attention as plain loops: one query, all its scores, softmax, output.
#include <algorithm>
#include <cmath>
#include <vector>

constexpr int kDim = 64;

extern "C" void attention(const float* query, const float* key, const float* value,
                          float* output, int length) {
  const float scale = 1 / std::sqrt(float(kDim));
  std::vector<float> weights(length);
  for (int i = 0; i < length; ++i, query += kDim, output += kDim) {
    for (int j = 0; j < length; ++j) {
      float score = 0;
      for (int d = 0; d < kDim; ++d) score += query[d] * key[j * kDim + d];
      weights[j] = score * scale;
    }
    const float largest = *std::max_element(weights.begin(), weights.end());
    float sum = 0;
    for (float& weight : weights) sum += weight = std::exp(weight - largest);
    for (int d = 0; d < kDim; ++d) {
      float total = 0;
      for (int j = 0; j < length; ++j) total += weights[j] * value[j * kDim + d];
      output[d] = total / sum;
    }
  }
}
