// Scores as products of queries and keys in bfloat16:
//
//   score = scale (sum over pairs of dimensions of dot_pairs)
//
// Arrays stored in bfloat16 lose no precision. Pairs of keys in bfloat16 arrays are read in place.
#pragma once

#include "../attention/forward_workspace.hpp"
#include "../strips/lanes.hpp"
#include "pair_products.hpp"

namespace regard {
namespace {

// `Dot` is one of the types in ../../simd/bfloat16_pairs.hpp.
template <class Shape, class Dot>
struct PairScores {
  using T = float;
  static constexpr bool kGathers = false;

  static bool copies_keys(const AttentionProblem& problem) {
    const Operand& key = problem.key;
    return key.element != Element::bfloat16 || key.column_stride != 1 || key.row_stride % 2 != 0 ||
           problem.head_dim % 2 != 0 || are_far_apart(key.row_stride * 2);
  }

  // strip.queries[d / 2][kStripLanes] = pairs.
  REGARD_NOINLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                    const ForwardStrip<float>& strip) {
    constexpr int lanes = Shape::kStripLanes;
    pack_rows<Shape>(problem, problem.query, task.query, strip, problem.head_dim, strip.queries,
                     Identity{});
    pair_rows(strip.queries, lanes, problem.head_dim, strip.vectors * kLanes<float>, strip.queries,
              lanes);
  }

  REGARD_NOINLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                    const ForwardWorkspace<float>& work,
                                    ForwardBlock<float>& block) {
    if (block.keys.from) return;
    const KvRows rows = keys_of(problem, task);
    const bool is_whole = block.count % Shape::kRows == 0;
    if (!copies_keys(problem) && is_whole && lie_together(rows, block.begin, block.count)) {
      block.keys.from = static_cast<const float*>(row_at(rows, block.begin));
      block.keys.stride = problem.key.row_stride / 2;
      return;
    }
    const TileRows<float> wide = provide_rows<float, Shape::kRows>(
        rows, block.begin, block.count, problem.head_dim, problem.head_dim, work.keys);
    const std::int64_t pairs = pairs_in(problem.head_dim);
    for (std::int64_t k = 0; k < round_up(block.count, Shape::kRows); ++k)
      pair_neighbors(tile_row(wide, k), problem.head_dim, work.keys.rows + k * pairs);
    block.keys.from = work.keys.rows;
    block.keys.stride = pairs;
  }

  template <class Tile>
  REGARD_INLINE PairProduct<Shape, Dot> product(const Tile& tile, const AttentionProblem& problem,
                                                const AttentionTask&,
                                                const ForwardStrip<float>& strip,
                                                const ForwardBlock<float>& block) {
    return {block.keys.from + tile.begin * block.keys.stride, block.keys.stride, strip.queries,
            pairs_in(problem.head_dim)};
  }
};

// output += weights value, both in bfloat16. Products are over pairs of keys, and weights are
// rounded after they have been added to the sums of the rows.
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
