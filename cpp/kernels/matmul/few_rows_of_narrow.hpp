// c = a b for few rows and a narrow b, which is read once, in order, in its stored type:
//
//   for a panel of columns              as wide as the rows' sums fit in half of the registers
//     for a block of depth              summed in order, then added: the bits of matmul.hpp
//       for a group of its rows         expanded into a panel, which stays in L1, and multiplied
#pragma once

#include "expand.hpp"
#include "few_rows.hpp"

namespace regard {
namespace {

template <class Shape>
struct MatmulFewRowsOfNarrow {
  using T = typename Shape::Element;
  static constexpr std::int64_t kBlock = kTuning.matmul_depth;
  // A group of this many vectors is 16 KB with AVX-512, and their sums form independent dependency
  // chains.
  static constexpr int kMostVectors = 4;
  static constexpr std::int64_t kPanelElements = kScaleGroup * kMostVectors * kLanes<T>;

  // Prefetch distance in groups: 16 KB of int8.
  static constexpr std::int64_t kGroupsAhead = 4;

  // `tile` has room for MatmulFewRows::kTileElements, `panel` for kPanelElements.
  template <int kRows>
  static void run(const MatmulProblem& problem, const MatmulTask& task, T* tile, T* panel) {
    constexpr int kFit = MatmulFewRows<Shape>::kAccumulators / kRows;
    constexpr int kVectors = kFit < kMostVectors ? kFit : kMostVectors;
    const T* rows[kRows];
    few_rows_of_a(problem, task, rows);
    for (std::int64_t column = task.column_begin; column < task.column_end;) {
      const std::int64_t left = task.column_end - column;
      const std::int64_t vectors = (left + kLanes<T> - 1) / kLanes<T>;
      const auto run_vectors = [&](auto count) {
        constexpr int kCount = decltype(count)::value;
        run_panel<kRows, kCount>(problem, task, rows, column, tile, panel);
        column += kCount * kLanes<T>;
      };
      if (vectors >= kVectors)
        run_vectors(Constant<kVectors>{});
      else if (kVectors > 3 && vectors == 3)
        run_vectors(Constant<3>{});
      else if (kVectors > 2 && vectors == 2)
        run_vectors(Constant<2>{});
      else
        run_vectors(Constant<1>{});
    }
  }

 private:
  template <int kRows, int kVectors>
  static void run_panel(const MatmulProblem& problem, const MatmulTask& task,
                        const T* const (&rows)[kRows], std::int64_t column, T* tile, T* panel) {
    static_assert(kBlock % kScaleGroup == 0, "blocks and groups begin together");
    constexpr std::int64_t kWidth = kVectors * kLanes<T>;
    const std::int64_t left = task.column_end - column;
    const std::int64_t width = left < kWidth ? left : kWidth;
    if (task.depth_begin > 0) move_rows<T, false>(problem, task, column, width, kWidth, tile);
    for (std::int64_t k = task.depth_begin; k < task.depth_end; k += kBlock) {
      const std::int64_t end = task.depth_end - k < kBlock ? task.depth_end : k + kBlock;
      Accumulators<T, kRows, kVectors> sums;
      clear<T, kRows, kVectors>(sums);
      for (std::int64_t group = k; group < end; group += kScaleGroup) {
        const std::int64_t depth = end - group < kScaleGroup ? end - group : kScaleGroup;
        const std::int64_t ahead = elements_ahead<kWidth>(problem, task, group, column);
        expand_panel<T, kVectors>(problem, task, group, depth, column, width, ahead, panel);
        multiply_group<kRows, kVectors>(rows, group, panel, depth, sums);
      }
      add_to_tile<T, kRows, kVectors>(sums, tile, k > 0);
    }
    move_rows<T, true>(problem, task, column, width, kWidth, tile);
  }

  // The distance, in elements, to the data that is read kGroupsAhead groups later, in these columns
  // or the next ones.
  template <std::int64_t kWidth>
  static std::int64_t elements_ahead(const MatmulProblem& problem, const MatmulTask& task,
                                     std::int64_t group, std::int64_t column) {
    constexpr std::int64_t kRowsAhead = kGroupsAhead * kScaleGroup;
    const Operand& b = problem.b;
    if (group + kRowsAhead < task.depth_end) return kRowsAhead * b.row_stride;
    if (column + 2 * kWidth > problem.columns) return 0;
    const std::int64_t beyond = group + kRowsAhead - round_up(task.depth_end, kScaleGroup);
    const std::int64_t row =
        task.depth_begin + beyond < task.depth_end ? task.depth_begin + beyond : task.depth_begin;
    return kWidth * b.column_stride + (row - group) * b.row_stride;
  }

  template <int kRows, int kVectors>
  REGARD_NOINLINE void multiply_group(const T* const (&rows)[kRows], std::int64_t k, const T* panel,
                                      std::int64_t depth, Accumulators<T, kRows, kVectors>& sums) {
    Accumulators<T, kRows, kVectors> acc;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = sums[r][v];
    const T* left[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) left[r] = rows[r] + k;
    for (std::int64_t i = 0; i < depth; ++i, panel += kVectors * kLanes<T>) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> right = load(panel + v * kLanes<T>);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r][v] = fma(broadcast(left[r][i]), right, acc[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = acc[r][v];
  }
};

}  // namespace
}  // namespace regard
