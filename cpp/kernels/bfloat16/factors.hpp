// The operands of the backward kernel's products in bfloat16: queries, keys, values and
// grad_output, and P and dS after they have been computed in float32. Every product sums over
// pairs: pairs of dimensions for scores and the gradients of weights, pairs of keys for the
// gradients of queries, and pairs of queries for the gradients of keys and values.
#pragma once

#include "../backward/products.hpp"
#include "../strips/lanes.hpp"
#include "pair_products.hpp"

namespace regard {
namespace {

template <class Shape, class Dot>
struct PairFactors {
  using T = float;
  using Workspace = BackwardWorkspace<Shape>;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kRowsOfElement = 2;
  static constexpr bool kCopies = true;

  // work.keys and work.values: [key][padded dim / 2], pairs of dimensions. In the memory of the
  // keys, pairs of keys follow, [key / 2][padded head_dim]. Rows are widened in the memory that
  // later holds gradients.
  REGARD_NOINLINE void provide_keys(const BackwardProblem& problem, const BackwardTask& task,
                                    Workspace& work) {
    const AttentionProblem& forward = problem.forward;
    const auto widen = [&](const KvRows& rows, std::int64_t columns, float* to, float* tail) {
      const std::int64_t count = work.piece.end - work.piece.begin;
      return provide_rows<float, kRows>(rows, work.piece.begin, count, columns,
                                        padded_dim<Shape>(columns), {to, tail, nullptr});
    };
    const TileRows<float> keys = widen(keys_of(forward, task.forward), forward.head_dim,
                                       work.grad_keys, work.key_copies.tail);
    work.keys = neighbors(keys, forward.head_dim, work, work.key_copies.rows);
    const std::int64_t columns = padded_dim<Shape>(forward.head_dim);
    float* const pairs = work.key_copies.rows + work.keys.whole * work.keys.stride;
    for (std::int64_t k = 0; k < work.keys.whole; k += kRows)
      pair_rows(tile_row(keys, k), k < keys.whole ? keys.stride : keys.tail_stride, kRows, columns,
                pairs + k / 2 * columns, columns);
    work.values = neighbors(widen(values_of(forward, task.forward), forward.value_dim,
                                  work.grad_values, work.value_copies.tail),
                            forward.value_dim, work, work.value_copies.rows);
  }

  // The gradients of a row's scores sum to 0 only if D is computed from the same rounded numbers as
  // dP.
  REGARD_NOINLINE void round_grad_output(const Workspace& work, std::int64_t columns) {
    float* const rows = work.copied_grad_output_rows;
    for (std::int64_t i = 0; i < work.rows * columns; i += kLanes<float>)
      store(rows + i, low_of_pairs(pairs_of(load(rows + i), Vec<float>{})));
  }

  // strip.queries and strip.grad_outputs: [dimension / 2][kStripLanes].
  REGARD_NOINLINE void finish_lanes(const AttentionProblem& forward,
                                    const BackwardStrip<float>& strip) {
    const auto pair = [&](float* rows, std::int64_t dim) {
      pair_rows(rows, kPitch, dim, strip.vectors * kLanes<float>, rows, kPitch);
    };
    pair(strip.queries, forward.head_dim);
    pair(strip.grad_outputs, forward.value_dim);
  }

  // work.query_rows and work.grad_output_rows: [row / 2][padded dim].
  REGARD_NOINLINE void finish_rows(const AttentionProblem& forward, Workspace& work) {
    const auto pair = [&](std::int64_t dim, float* rows) {
      const std::int64_t columns = padded_dim<Shape>(dim);
      pair_rows(rows, columns, work.rows, columns, rows, columns);
    };
    pair(forward.head_dim, work.copied_query_rows);
    pair(forward.value_dim, work.copied_grad_output_rows);
  }

  template <class Tile>
  REGARD_INLINE PairProduct<Shape, Dot> product(const Tile& tile, const TileRows<float>& rows,
                                                std::int64_t first, const float* lanes,
                                                std::int64_t dim) {
    return {rows.from + (first + tile.begin) * rows.stride, rows.stride, lanes, pairs_in(dim)};
  }

  REGARD_INLINE bool are_finite(const float* from, std::ptrdiff_t stride, std::int64_t rows,
                                std::int64_t columns) {
    return pairs_are_finite(from, stride, rows, columns);
  }

  REGARD_INLINE void add_to_queries(const AttentionProblem& forward, const Workspace& work,
                                    int number, const KeyRuns<Shape>& runs, const KeySpan& block) {
    const BackwardStrip<float>& strip = work.strips[number];
    const float* const gradients = work.grad_scores + number * Shape::kBlockKeys * kPitch;
    // work.bias has already been added to the scores, so its memory is free.
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; k += 2)
        for (int lane = 0; lane < strip.vectors * kLanes<float>; lane += kLanes<float>) {
          const float* const from = gradients + k * kPitch + lane;
          store(work.bias + k / 2 * kPitch + lane, pairs_of(load(from), load(from + kPitch)));
        }
    const std::int64_t columns = padded_dim<Shape>(forward.head_dim);
    const std::int64_t first = block.begin - work.piece.begin;
    const float* const keys =
        work.keys.from + work.keys.whole * work.keys.stride + first / 2 * columns;
    const bool selects = runs.hide_something &&
                         !pairs_are_finite(keys, columns, pairs_in(block.count), forward.head_dim);
    const KeyTerm<float> term{work.bias, keys, columns};
    add_columns<Shape, MultiplyPairsOfKeys<Dot>>(selects, runs, &term, 1,
                                                 round_up(forward.head_dim, kRows), strip.vectors,
                                                 strip.is_fresh, strip.grad_queries);
  }

  // Pairs neighboring queries. The pairs overwrite the first half of the vectors' memory.
  REGARD_NOINLINE void finish_terms(const Workspace& work, const BandRuns<Shape>& runs,
                                    float* terms) {
    for (int i = 0; i < runs.count; ++i)
      for (int s = 0; s < work.strip_count; ++s) {
        const BandRun<Shape>& run = runs.run[i];
        const int first = run.vectors[s].begin * kLanes<float>,
                  end = run.vectors[s].end * kLanes<float>, rows = work.strips[s].rows;
        for (int k = run.begin; k < run.end; ++k) {
          float* const row = terms + (s * Shape::kBlockKeys + k) * kPitch;
          // The lane after the last row is not a row.
          if (rows % 2 != 0 && rows < end) row[rows] = 0;
          pair_neighbors(row + first, end - first, row + first / 2);
        }
      }
  }

  template <int kTileRows, int kVectors, bool kSelect>
  REGARD_INLINE void multiply(Accumulators<float, kTileRows, kVectors>& acc, const float* a,
                              std::ptrdiff_t row_stride, const float* b, std::ptrdiff_t b_stride,
                              std::int64_t depth) {
    multiply_rows_of_pairs<Dot, kTileRows, kVectors, kSelect>(acc, a, row_stride, b, b_stride,
                                                              depth);
  }

 private:
  static constexpr int kPitch = Shape::kStripLanes;

  REGARD_INLINE TileRows<float> neighbors(const TileRows<float>& rows, std::int64_t dim,
                                          const Workspace& work, float* to) {
    const std::int64_t columns = padded_dim<Shape>(dim),
                       count = round_up(work.piece.end - work.piece.begin, kRows);
    for (std::int64_t k = 0; k < count; ++k)
      pair_neighbors(tile_row(rows, k), columns, to + k * (columns / 2));
    return {to, columns / 2, nullptr, 0, count, nullptr};
  }
};

}  // namespace
}  // namespace regard
