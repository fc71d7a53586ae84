// A strip's queries in int8, one lane per query: rotated and scaled by their largest magnitude, as
// keys are (keys.hpp). Also the score of each query with the mean of the keys, computed from the
// unrounded query.
//
// A query that contains NaN or inf has a factor of NaN, so all its scores are NaN, as all its
// weights would be.
#pragma once

#include "keys.hpp"
#include "../attention/forward_workspace.hpp"
#include "../strips/lanes.hpp"

namespace regard {
namespace {

// Packs the rotated queries in float32, with their factors and their scores with the mean.
// `inverses` converts them to int8.
template <class Shape>
REGARD_NOINLINE void measure_queries(const AttentionProblem& problem, const AttentionTask& task,
                                     const ForwardStrip<float>& strip, float* inverses) {
  constexpr int lanes = Shape::kStripLanes;
  pack_rows<Shape>(problem, problem.query, task.query, strip, problem.head_dim, strip.queries,
                   Identity{});
  const Vec<float> group = broadcast(static_cast<float>(rotated_together(problem.head_dim)));
  const float* mean = task.int8_keys->mean;
  for (int lane = 0; lane < strip.vectors * kLanes<float>; lane += kLanes<float>) {
    Vec<float> score{};
    for (std::int64_t d = 0; d < problem.head_dim; ++d)
      score = fma(load<float>(strip.queries + d * lanes + lane), broadcast(mean[d]), score);
    rotate_shares(strip.queries + lane, lanes, problem.head_dim);
    const Int8Steps steps = steps_of(strip.queries + lane, lanes, problem.head_dim);
    store(strip.query_scale + lane, steps.step * group);
    store(strip.mean_score + lane, score);
    store(inverses + lane, steps.inverse);
  }
}

// queries[d / 4][kStripLanes] = four adjacent integers, the first in the lowest bits. The bytes are
// 128 too large.
template <class Shape>
REGARD_NOINLINE void pack_bytes_of_queries(const AttentionProblem& problem,
                                           const AttentionTask& task,
                                           const ForwardStrip<float>& strip) {
  float inverses[Shape::kStripLanes];
  measure_queries<Shape>(problem, task, strip, inverses);
  constexpr int lanes = Shape::kStripLanes;
  const Vec<float> round = broadcast(kRoundToInteger + 128);
  for (std::int64_t d = 0; d < problem.head_dim; d += 4)
    for (int lane = 0; lane < strip.vectors * kLanes<float>; lane += kLanes<float>) {
      Mask<float> bytes{};
      for (int i = 0; i < 4 && d + i < problem.head_dim; ++i) {
        const Vec<float> query = load<float>(strip.queries + (d + i) * lanes + lane);
        const Vec<float> rounded = query * load(inverses + lane) + round;
        bytes |= (as_bits<float>(rounded) & 255) << (8 * i);
      }
      store(strip.queries + d / 4 * lanes + lane, as_value<float>(bytes));
    }
}

}  // namespace
}  // namespace regard
