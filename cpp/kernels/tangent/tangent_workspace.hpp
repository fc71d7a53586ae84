// The working memory of one thread for one task.
#pragma once

#include "../../problem/tangent.hpp"
#include "../strips/online_softmax.hpp"

namespace regard {
namespace {

// The strip's sums, in addition to the sum of P:
//
//   1            sum of P tangent_score over the current block
//   1            the same sum over the earlier blocks
//   value_dim    sum of P value, padded to whole tiles, as is the next sum
//   value_dim    sum of P tangent_score value + P tangent_value
template <class T>
struct TangentStrip : OnlineStrip<T> {
  T* tangent_queries;  // [head_dim][kStripLanes]
};

template <class Shape, class T = typename Shape::Element>
REGARD_INLINE T* tangent_block_sum(const TangentStrip<T>& strip) {
  return strip.gathered;
}
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE T* tangent_sum(const TangentStrip<T>& strip) {
  return strip.gathered + Shape::kStripLanes;
}
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE T* tangent_outputs(const TangentStrip<T>& strip) {
  return outputs_of<Shape>(strip) + (strip.all_rows - strip.sum_rows) / 2 * Shape::kStripLanes;
}

template <class T>
struct TangentWorkspace {
  TangentStrip<T>* strips;
  int strip_count;
  T* weights;        // [block keys][kStripLanes]: P
  T* tangents;       // [block keys][kStripLanes]: P times the tangents of scores
  T* bias;           // [block keys][kStripLanes]
  T* capped_scores;  // [tile rows][lanes]
  RowCopies<T> keys;
  RowCopies<T> tangent_keys;
  RowCopies<T> values;
  RowCopies<T> tangent_values;
};

// Lays out the workspace, as lay_out_forward does (../attention/forward_workspace.hpp).
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_tangent(const TangentProblem& problem, std::int64_t task_rows,
                                             void* memory) {
  const AttentionProblem& forward = problem.forward;
  const std::int64_t value_dim = round_up(forward.value_dim, Shape::kRows);
  Arena arena(memory);
  auto* const place = arena.take<TangentWorkspace<T>>(1);
  TangentWorkspace<T> work{};
  work.strip_count =
      take_strips<Shape>(forward, task_rows, arena, work.strips, [&](TangentStrip<T>& strip) {
        take_online<Shape>(forward, 2, 2 * value_dim, arena, strip);
        strip.tangent_queries = arena.take<T>(forward.head_dim * Shape::kStripLanes);
      });
  constexpr std::int64_t kBlock = Shape::kBlockKeys * Shape::kStripLanes;
  work.weights = arena.take<T>(kBlock);
  work.tangents = arena.take<T>(kBlock);
  work.bias = arena.take<T>(kBlock);
  work.capped_scores = arena.take<T>(Shape::kRows * Shape::kStripLanes);
  const auto take_copies = [&](std::int64_t columns) {
    return RowCopies<T>{arena.take<T>(Shape::kBlockKeys * columns),
                        arena.take<T>(Shape::kRows * columns), nullptr};
  };
  work.keys = take_copies(forward.head_dim);
  work.tangent_keys = take_copies(forward.head_dim);
  work.values = take_copies(value_dim);
  work.tangent_values = take_copies(value_dim);
  if (place) *place = work;
  return arena.used();
}

}  // namespace
}  // namespace regard
