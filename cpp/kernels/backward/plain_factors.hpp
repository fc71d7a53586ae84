// The operands of the backward kernel's products, in the scalar's own precision. For bfloat16, see
// ../bfloat16/factors.hpp.
#pragma once

#include "../strips/lanes.hpp"
#include "../strips/scores.hpp"
#include "backward_workspace.hpp"

namespace regard {
namespace {

template <class Shape>
struct PlainFactors {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kRowsOfElement = 1;
  static constexpr bool kCopies = false;

  REGARD_INLINE void provide_keys(const BackwardProblem& problem, const BackwardTask& task,
                                  BackwardWorkspace<Shape>& work) {
    const AttentionProblem& forward = problem.forward;
    work.keys = provide(keys_of(forward, task.forward), forward.head_dim, work, work.key_copies);
    work.values =
        provide(values_of(forward, task.forward), forward.value_dim, work, work.value_copies);
  }

  // D is computed from the unrounded grad_output.
  REGARD_INLINE void round_grad_output(const BackwardWorkspace<Shape>&, std::int64_t) {}

  // strip.queries and strip.grad_outputs are already in lanes, and work.query_rows and
  // work.grad_output_rows already hold the rows of the band.
  REGARD_INLINE void finish_lanes(const AttentionProblem&, const BackwardStrip<T>&) {}
  REGARD_INLINE void finish_rows(const AttentionProblem&, BackwardWorkspace<Shape>&) {}

  // The product of a tile in the block that starts at row `first` of the piece: keys with queries,
  // or values with grad_outputs.
  template <class Tile>
  REGARD_INLINE auto product(const Tile& tile, const TileRows<T>& rows, std::int64_t first,
                             const T* lanes, std::int64_t dim) {
    return product_of<Shape>(tile, rows_from(rows, first), lanes, dim);
  }

  REGARD_INLINE bool are_finite(const T* from, std::ptrdiff_t stride, std::int64_t rows,
                                std::int64_t columns) {
    return rows_are_finite(from, stride, rows, columns);
  }

  // strip.grad_queries += K^T dS^T, for `block`.
  REGARD_INLINE void add_to_queries(const AttentionProblem& forward,
                                    const BackwardWorkspace<Shape>& work, int number,
                                    const KeyRuns<Shape>& runs, const KeySpan& block) {
    const BackwardStrip<T>& strip = work.strips[number];
    const TileRows<T> keys = rows_from(work.keys, block.begin - work.piece.begin);
    const bool selects = runs.hide_something &&
                         !rows_are_finite(keys.from, keys.stride, block.count, forward.head_dim);
    const KeyTerm<T> term{work.grad_scores + number * Shape::kBlockKeys * Shape::kStripLanes,
                          keys.from, keys.stride};
    add_columns<Shape>(selects, runs, &term, 1, round_up(forward.head_dim, kRows), strip.vectors,
                       strip.is_fresh, strip.grad_queries);
  }

  // Prepares P or dS for the multiplication by rows.
  template <class Runs>
  REGARD_INLINE void finish_terms(const BackwardWorkspace<Shape>&, const Runs&, T*) {}

  template <int kTileRows, int kVectors, bool kSelect>
  REGARD_INLINE void multiply(Accumulators<T, kTileRows, kVectors>& acc, const T* a,
                              std::ptrdiff_t row_stride, const T* b, std::ptrdiff_t b_stride,
                              std::int64_t depth) {
    multiply_rows<T, kTileRows, kVectors, kSelect>(acc, a, row_stride, b, b_stride, depth);
  }

 private:
  REGARD_INLINE TileRows<T> provide(const KvRows& rows, std::int64_t columns,
                                    const BackwardWorkspace<Shape>& work,
                                    const RowCopies<T>& copies) {
    return provide_rows<T, kRows>(rows, work.piece.begin, work.piece.end - work.piece.begin,
                                  columns, columns_read<Shape, PlainFactors>(rows.operand, columns),
                                  copies);
  }
};

}  // namespace
}  // namespace regard
