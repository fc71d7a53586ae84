// output += weights value, both in bfloat16. Products are over pairs of keys, and weights are
// rounded after they have been added to the sums of the rows.
#pragma once

#include "scores.hpp"

namespace regard {
namespace {

template <class Shape, class Dot>
struct PairValues {
  using T = float;
  static constexpr int kRows = Shape::kRows;

  static bool copies_values(const AttentionProblem&) { return true; }

  // block.values: [key / 2][padded value_dim], each element a pair of keys.
  REGARD_NOINLINE void provide(const AttentionProblem& problem, const AttentionTask& task,
                               const ForwardWorkspace<float>& work, ForwardBlock<float>& block) {
    if (block.values.from) return;
    const std::int64_t columns = round_up(problem.value_dim, kRows);
    const TileRows<float> wide =
        provide_rows<float, kRows>(values_of(problem, task), block.begin, block.count,
                                   problem.value_dim, columns, work.values);
    pair_rows(wide.from, wide.stride, block.count, columns, work.values.rows, columns);
    block.values_are_finite =
        pairs_are_finite(work.values.rows, columns, pairs_in(block.count), problem.value_dim);
    block.values.from = work.values.rows;
    block.values.stride = columns;
  }

  REGARD_INLINE void add(const AttentionProblem& problem, const ForwardWorkspace<float>& work,
                         const ForwardBlock<float>& block, const KeyRuns<Shape>& runs, bool selects,
                         ForwardStrip<float>& strip) {
    constexpr int kWidth = Shape::kStripLanes;
    // The last tile of a run is complete in the workspace.
    for (int i = 0; i < runs.count; ++i)
      pair_rows(work.weights + runs.run[i].begin * kWidth, kWidth,
                round_up(runs.run[i].end, 2) - runs.run[i].begin, strip.vectors * kLanes<float>,
                work.weights + runs.run[i].begin / 2 * kWidth, kWidth);
    const KeyTerm<float> term{work.weights, block.values.from, block.values.stride};
    add_columns<Shape, MultiplyPairsOfKeys<Dot>>(selects, runs, &term, 1,
                                                 round_up(problem.value_dim, kRows), strip.vectors,
                                                 strip.is_fresh, outputs_of<Shape>(strip));
  }
};

}  // namespace
}  // namespace regard
