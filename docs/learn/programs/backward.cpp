// Gradients: five products around one block of scores, which is computed again from lse.
#include "strip.hpp"

// to[key][d] += sum over queries of weights[key][query] * rows[query][d]
static void add_rows(float* to, const float* weights, const float* rows) {
  constexpr int kWide = 2;  // dimensions in lanes: 3 vectors would not divide kDim
  for (int k = 0; k < kKeys; k += kRows, to += kRows * kDim, weights += kRows * kQueries)
    for (int d = 0; d < kDim; d += kWide * kLanes) {
      TileOf<kWide> sum{};
      multiply<kWide>(sum, weights, kQueries, 1, rows + d, kQueries, kDim);
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kWide; ++v) {
          float* at = to + r * kDim + d + v * kLanes;
          store(at, load(at) + sum[r][v]);
        }
    }
}

// The gradients of keys and values begin as zeros. `mean` is the sum of grad_output * output.
extern "C" void backward(const float* grad_output, const float* query, const float* key,
                         const float* value, const float* lse, const float* mean,
                         float* grad_query, float* grad_key, float* grad_value, int length) {
  const float scale = 1 / std::sqrt(float(kDim));
  static Strip s, g;  // g.query holds grad_output in lanes; g.weights the gradients of scores
  for (int first = 0; first < length; first += kQueries) {
    begin(s, query, first);  // times scale * log2(e)
    begin(g, grad_output, first);
    const float back = 1 / (1.44269504f * scale);  // grad_output has no scale
    for (int v = 0; v < kVectors; ++v) {
      s.m[v] = load(lse + first + v * kLanes) * 1.44269504f;
      g.m[v] = load(mean + first + v * kLanes);
      s.l[v] = g.l[v] = broadcast(1);
    }
    for (int at = 0; at < length; at += kKeys) {
      for (int k = 0; k < kKeys; k += kRows) {
        Tile weights{}, grads{};
        multiply<kVectors>(weights, key + (at + k) * kDim, kDim, 1, s.query, kDim);
        multiply<kVectors>(grads, value + (at + k) * kDim, kDim, 1, g.query, kDim);
        for (int r = 0; r < kRows; ++r)
          for (int v = 0; v < kVectors; ++v) {
            weights[r][v] = exp2(weights[r][v] - s.m[v]);
            grads[r][v] = weights[r][v] * (grads[r][v] * back - g.m[v]) * scale;
          }
        store_tile<kVectors>(weights, s.weights + k * kQueries);
        store_tile<kVectors>(grads, g.weights + k * kQueries);
      }
      add_rows(grad_value + at * kDim, s.weights, grad_output + first * kDim);
      add_rows(grad_key + at * kDim, g.weights, query + first * kDim);
      add_values(g, key + at * kDim, kKeys);  // the gradients of queries, in lanes
    }
    finish(g, grad_query, first);
  }
}
