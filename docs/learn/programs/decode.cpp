// One query for each head: dimensions in lanes, and every key and value is read once.
#include <algorithm>
#include <cmath>

#include "exp2.hpp"
#include "tasks.hpp"

constexpr int kBlock = 96, kParts = kDim / kLanes;

static void attend(const float* query, const float* key, const float* value, float* output,
                   int length) {
  Vec q[kParts], sum[kParts] = {};
  float m = -INFINITY, l = 0;
  for (int p = 0; p < kParts; ++p)
    q[p] = load(query + p * kLanes) * broadcast(1.44269504f / std::sqrt(float(kDim)));
  for (int at = 0; at < length; at += kBlock) {
    const int keys = std::min(kBlock, length - at);
    float weights[kBlock], top = m;
    for (int k = 0; k < keys; ++k) {
      Vec products{};
#pragma GCC unroll 16
      for (int p = 0; p < kParts; ++p)
        products += q[p] * load(key + (at + k) * kDim + p * kLanes);
      float score = 0;  // across the lanes: the one sum that queries in lanes do not need
      for (int lane = 0; lane < kLanes; ++lane) score += products[lane];
      weights[k] = score;
      top = std::max(top, score);
    }
    std::fill(weights + keys, weights + kBlock, -INFINITY);
    const float factor = exp2(broadcast(m - top))[0];
    m = top;
    l *= factor;
    for (Vec& part : sum) part *= factor;
    for (int k = 0; k < kBlock; k += kLanes)
      store(weights + k, exp2(load(weights + k) - broadcast(m)));
    for (int k = 0; k < keys; ++k) {
      l += weights[k];
#pragma GCC unroll 16
      for (int p = 0; p < kParts; ++p)
        sum[p] += broadcast(weights[k]) * load(value + (at + k) * kDim + p * kLanes);
    }
  }
  for (int p = 0; p < kParts; ++p) store(output + p * kLanes, sum[p] / broadcast(l));
}

extern "C" void decode(const float* query, const float* key, const float* value,
                       float* output, int heads, int length, int threads) {
  in_parallel(heads, threads, [=](int h) {
    const long from = long(h) * length * kDim;
    attend(query + h * kDim, key + from, value + from, output + h * kDim, length);
  });
}
