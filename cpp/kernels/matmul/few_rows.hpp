// c = a b for so few rows that b is read about once. b is multiplied in place, whether its rows or
// its columns are contiguous (a layer's weight and its transpose), because packing it would take
// longer.
//
//   for a panel of columns                  as many as fill half of the registers
//     for a block of depth                  summed in order, then added: the bits of matmul.hpp
#pragma once

#include "../elements.hpp"
#include "../for_rows.hpp"
#include "../micro_kernel.hpp"
#include "../pack.hpp"
#include "../../problem/matmul.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

// Copies c, which holds the sum of the blocks before the task, to the tile, or the tile to c. Rows
// of the tile are `stride` apart.
template <class T, bool kWrites>
REGARD_NOINLINE void move_rows(const MatmulProblem& problem, const MatmulTask& task,
                               std::int64_t column, std::int64_t width, std::int64_t stride,
                               T* tile) {
  const Operand& c = problem.c;
  for (std::int64_t row = 0; row < task.row_end - task.row_begin; ++row) {
    T* const at = static_cast<T*>(task.c) + (task.row_begin + row) * c.row_stride;
    for (std::int64_t i = 0; i < width; ++i) {
      T& of_c = at[(column + i) * c.column_stride];
      T& of_tile = tile[row * stride + i];
      if constexpr (kWrites)
        of_c = of_tile;
      else
        of_tile = of_c;
    }
  }
}

template <class T, int kRows, int kVectors>
REGARD_INLINE void add_to_tile(const Accumulators<T, kRows, kVectors>& acc, T* tile, bool adds) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      T* at = tile + (r * kVectors + v) * kLanes<T>;
      store(at, adds ? load<T>(at) + acc[r][v] : acc[r][v]);
    }
}

// A task's rows of a. Rows beyond the last repeat it and are not stored.
template <class T, int kRows>
REGARD_INLINE void few_rows_of_a(const MatmulProblem& problem, const MatmulTask& task,
                                 const T* (&rows)[kRows]) {
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row =
        task.row_begin + r < task.row_end ? task.row_begin + r : task.row_end - 1;
    rows[r] = static_cast<const T*>(task.a) + row * problem.a.row_stride;
  }
}

template <class Shape>
struct MatmulFewRows {
  using T = typename Shape::Element;
  static constexpr int kAccumulators = Shape::kRegisterCount / 2;
  static constexpr std::int64_t kTileElements = kAccumulators * kLanes<T>;
  static constexpr std::int64_t kBlock = kTuning.matmul_depth;

  // `tile` has room for kTileElements, `panel` for kBlock rows of a vector.
  template <int kRows>
  static void run(const MatmulProblem& problem, const MatmulTask& task, T* tile, T* panel) {
    constexpr int kWidth = kLanes<T>, kVectors = kAccumulators / kRows;
    const Operand& b = problem.b;
    const T* rows[kRows];
    few_rows_of_a(problem, task, rows);
    for (std::int64_t column = task.column_begin; column < task.column_end;) {
      const std::int64_t left = task.column_end - column;
      const bool is_wide = b.column_stride == 1 && left >= kVectors * kWidth;
      const std::int64_t width = is_wide ? kVectors * kWidth : left < kWidth ? left : kWidth;
      const std::int64_t stride = is_wide ? kVectors * kWidth : kWidth;
      if (task.depth_begin > 0) move_rows<T, false>(problem, task, column, width, stride, tile);
      for (std::int64_t k = task.depth_begin; k < task.depth_end; k += kBlock) {
        const std::int64_t depth = task.depth_end - k < kBlock ? task.depth_end - k : kBlock;
        const T* from = static_cast<const T*>(task.b) + k * b.row_stride + column * b.column_stride;
        const bool adds = k > 0;
        if (is_wide) {
          add_block<kRows, kVectors>(rows, k, from, b.row_stride, depth, tile, adds);
        } else if (b.column_stride != 1) {
          add_columns<kRows>(rows, k, from, b.column_stride, width, depth, tile, adds);
        } else if (width == kWidth) {
          add_block<kRows, 1>(rows, k, from, b.row_stride, depth, tile, adds);
        } else {
          copy_padded(from, b.row_stride, 1, depth, width, panel, depth, kWidth);
          add_block<kRows, 1>(rows, k, panel, kWidth, depth, tile, adds);
        }
      }
      move_rows<T, true>(problem, task, column, width, stride, tile);
      column += width;
    }
  }

 private:
  template <int kRows, int kVectors>
  REGARD_NOINLINE void add_block(const T* const* rows, std::int64_t k, const T* b,
                                 std::ptrdiff_t stride, std::int64_t depth, T* tile, bool adds) {
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    for (std::int64_t i = 0; i < depth; ++i) {
      Vec<T> left[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) left[r] = broadcast(rows[r][k + i]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> right = load(b + i * stride + v * kLanes<T>);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[r][v] = fma(left[r], right, acc[r][v]);
      }
    }
    add_to_tile<T, kRows, kVectors>(acc, tile, adds);
  }

  // Adds contiguous columns of b, which are transposed into lanes, square by square, in registers.
  template <int kRows>
  REGARD_NOINLINE void add_columns(const T* const* rows, std::int64_t k, const T* b,
                                   std::ptrdiff_t stride, std::int64_t count, std::int64_t depth,
                                   T* tile, bool adds) {
    constexpr int kWidth = kLanes<T>;
    Accumulators<T, kRows, 1> acc;
    clear<T, kRows, 1>(acc);
    // Lanes beyond the last column repeat it and are not stored.
    const T* columns[kWidth];
    for (int i = 0; i < kWidth; ++i) columns[i] = b + (i < count ? i : count - 1) * stride;
    std::int64_t d = 0;
    for (; d + kWidth <= depth; d += kWidth) {
      Vec<T> square[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) square[i] = load(columns[i] + d);
      transpose<T>(square);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i)
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          acc[r][0] = fma(broadcast(rows[r][k + d + i]), square[i], acc[r][0]);
    }
    for (; d < depth; ++d) {
      Vec<T> gathered;
      for (int i = 0; i < kWidth; ++i) gathered[i] = columns[i][d];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        acc[r][0] = fma(broadcast(rows[r][k + d]), gathered, acc[r][0]);
    }
    add_to_tile<T, kRows, 1>(acc, tile, adds);
  }
};

}  // namespace
}  // namespace regard
