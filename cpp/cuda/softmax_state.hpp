// The state of an online softmax over the keys that a row has seen: the largest score (its
// reference) and
//
//   sum = sum over its keys of e^(score - reference)
//
// Until the end, each lane that shares a row has a part of the sum. The sum is -0.0 until the row
// has seen a key: the weight of a hidden key is -0.0, and the weight of a visible key never is. So
// whether a row is fully masked follows from visibility, not from its scores. A sink is added at
// the end.
#pragma once

#include "score_rule.hpp"

namespace regard::cuda {

struct SoftmaxState {
  float reference = -kInfinity;
  float sum = kNothing;
};

// e^x, for the difference x of two scores. Scores are subtracted before the multiplication by
// log2(e), because its rounding error would grow with the scores.
REGARD_DEVICE float exponential(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return exp2_approximate(x * kLog2E);
}

// The factor that converts weights from one reference to a later one; 0 without an earlier
// reference.
REGARD_DEVICE float factor_between(float reference, float later) {
  return exponential(reference - (later == -kInfinity ? 0.0f : later));
}

// Converts a tile's scores to weights. Returns the factor for the accumulated output.
template <class Tile, bool kTested>
REGARD_DEVICE float weigh(float (&scores)[Tile::kScores], std::uint32_t seen, SoftmaxState& state) {
  float top = state.reference;
#pragma unroll
  for (int s = 0; s < Tile::kScores; ++s) top = fmaxf(top, scores[s]);
#pragma unroll
  for (int lanes = 1; lanes < Tile::kLanesOfRow; lanes *= 2) top = fmaxf(top, shuffle_xor(top, lanes));
  const float factor = factor_between(state.reference, top);
  const float base = top == -kInfinity ? 0.0f : top;
  float sum = kTested ? kNothing : 0.0f;
#pragma unroll
  for (int s = 0; s < Tile::kScores; ++s) {
    const float weight = exponential(scores[s] - base);
    scores[s] = kTested && (seen >> s & 1) == 0 ? kNothing : weight;
    sum += scores[s];
  }
  state.sum = state.sum * factor + sum;
  state.reference = top;
  return factor;
}

template <class Tile>
REGARD_DEVICE void sum_lanes(SoftmaxState& state) {
#pragma unroll
  for (int lanes = 1; lanes < Tile::kLanesOfRow; lanes *= 2) state.sum += shuffle_xor(state.sum, lanes);
}

// The final step of a row: its output is multiplied by `factor`, or is 0 if the row is fully
// masked.
struct FinishedRow {
  float factor;
  float lse;
  bool saw_nothing;
};

REGARD_DEVICE FinishedRow finish_row(const SoftmaxState& state, const float* sinks, int head) {
  const float sink = sinks ? sinks[head] : -kInfinity;
  if (is_nothing(state.sum)) return {0, sink, true};
  float reference = state.reference, sum = state.sum, factor = 1;
  if (sink != -kInfinity) {
    const float logit = nearest_finite(sink);
    reference = fmaxf(reference, logit);
    factor = factor_between(state.reference, reference);
    sum = sum * factor + exponential(logit - reference);
  }
  return {factor / sum, reference + logf(sum), false};
}

}  // namespace regard::cuda
