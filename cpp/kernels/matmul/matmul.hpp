// c = a b, for the rows, columns and interval of depth of one task; intervals begin at multiples of
// kDepth and come in order.
//
//   for a block of depth                              summed in order, added to c block by block
//     pack b's columns into panels of lanes           in L2; a panel fits in L1
//     for a panel
//       for a tile of rows                            c's tile in registers
//
// a is read where it lies if its rows are contiguous and near each other, and copied a block at a time
// if not.
#pragma once

#include "few_rows.hpp"
#include "../micro_kernel.hpp"
#include "../pack.hpp"
#include "../../problem/matmul.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

template <class Shape>
struct Matmul {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kPanel = Shape::kStripLanes;
  // The most of a task: blocks of a and b of 128 and 192 KB (float, AVX-512) share L2, and each element
  // that is copied is used 384 or 256 times.
  static constexpr std::int64_t kTaskRows = 256;
  static constexpr std::int64_t kPanels = 8;
  static constexpr std::int64_t kTaskColumns = kPanels * kPanel;
  // A panel of 128 x 48 floats is 24 KB, half of a 48 KB L1. A depth of 256 touches c less often and
  // is no faster, and sums 256 products in one chain, which costs half a bit.
  static constexpr std::int64_t kDepth = 128;

  static_assert(Shape::kVectors == 3, "multiply_block names the widths of a panel one by one");

  using FewRows = MatmulFewRows<Shape>;
  static_assert(FewRows::kTileElements <= kRows * kPanel, "few rows share the tile");

  struct Workspace {
    T* panels;  // [panel][depth][lanes]
    T* rows;    // [task rows][depth]
    T* tile;    // [tile rows][lanes]
  };

  static std::int64_t depth_of(const MatmulProblem& problem) {
    return problem.depth < kDepth ? problem.depth : kDepth;
  }

  static std::int64_t task_rows(const MatmulProblem& problem) {
    return round_up(problem.rows < kTaskRows ? problem.rows : kTaskRows, kRows);
  }

  static std::int64_t workspace_bytes(const MatmulProblem& problem) {
    const std::int64_t depth = depth_of(problem);
    return static_cast<std::int64_t>(sizeof(T)) *
           (depth * kTaskColumns + depth * task_rows(problem) + kRows * kPanel);
  }

  static void run(const MatmulProblem& problem, const MatmulTask& task, void* memory) {
    Workspace work;
    const std::int64_t block = depth_of(problem);
    work.panels = static_cast<T*>(memory);
    work.tile = work.panels + block * kTaskColumns;
    work.rows = work.tile + kRows * kPanel;
    if (problem.depth == 0) return clear_product(problem, task);
    if (FewRows::takes(problem)) return FewRows::template run<kDepth>(problem, task, work.tile, work.panels);
    for (std::int64_t k = task.depth_begin; k < task.depth_end; k += block) {
      const std::int64_t depth = task.depth_end - k < block ? task.depth_end - k : block;
      for (std::int64_t column = task.column_begin; column < task.column_end; column += kPanel)
        pack_panel(problem, task, k, depth, column,
                   work.panels + (column - task.column_begin) * depth);
      multiply_block(problem, task, k, depth, work);
    }
  }

 private:
  static void clear_product(const MatmulProblem& problem, const MatmulTask& task) {
    for (std::int64_t row = task.row_begin; row < task.row_end; ++row)
      for (std::int64_t column = task.column_begin; column < task.column_end; ++column)
        static_cast<T*>(task.c)[row * problem.c.row_stride + column * problem.c.column_stride] =
            T(0);
  }

  static int columns_from(const MatmulTask& task, std::int64_t column) {
    const std::int64_t left = task.column_end - column;
    return static_cast<int>(left < kPanel ? left : kPanel);
  }

  // panel[k][lane], zeros in lanes beyond the last column.
  REGARD_NOINLINE void pack_panel(const MatmulProblem& problem, const MatmulTask& task,
                                  std::int64_t k, std::int64_t depth, std::int64_t column,
                                  T* panel) {
    const Operand& b = problem.b;
    const int columns = columns_from(task, column);
    const T* from =
        static_cast<const T*>(task.b) + k * b.row_stride + column * b.column_stride;
    if (b.column_stride == 1) {
      copy_padded(from, b.row_stride, 1, depth, columns, panel, depth, kPanel);
      return;
    }
    const T* lanes[kPanel];
    for (int lane = 0; lane < columns; ++lane) lanes[lane] = from + lane * b.column_stride;
    rows_to_lanes<T>(lanes, columns, b.row_stride, depth, panel, kPanel, Identity{});
  }

  REGARD_NOINLINE void multiply_block(const MatmulProblem& problem, const MatmulTask& task,
                                      std::int64_t k, std::int64_t depth, const Workspace& work) {
    const Operand& a = problem.a;
    const T* rows =
        static_cast<const T*>(task.a) + task.row_begin * a.row_stride + k * a.column_stride;
    std::int64_t row_stride = a.row_stride;
    const std::int64_t count = task.row_end - task.row_begin;
    const std::int64_t row_bytes = row_stride * static_cast<std::int64_t>(sizeof(T));
    const bool is_near = a.column_stride == 1 && row_bytes < kFarRowBytes && -row_bytes < kFarRowBytes;
    const std::int64_t whole = is_near ? count / kRows * kRows : 0;
    copy_padded(rows + whole * a.row_stride, a.row_stride, a.column_stride, count - whole, depth,
                work.rows, round_up(count - whole, kRows), depth);
    const std::int64_t tiles = (count + kRows - 1) / kRows;
    const std::int64_t next_depth = k + depth < problem.depth ? depth : 0;
    for (std::int64_t column = task.column_begin; column < task.column_end; column += kPanel) {
      const int vectors = (columns_from(task, column) + kLanes<T> - 1) / kLanes<T>;
      const T* panel = work.panels + (column - task.column_begin) * depth;
      for (std::int64_t row = 0; row < count; row += kRows) {
        const bool in_place = row < whole;
        const T* tile_rows =
            in_place ? rows + row * row_stride : work.rows + (row - whole) * depth;
        const std::int64_t stride = in_place ? row_stride : depth;
        if (next_depth != 0 && column == task.column_begin)
          prefetch_next(problem, task, k + depth, next_depth, row, tiles);
        switch (vectors) {
          case 1:
            multiply_tile<1>(problem, task, tile_rows, stride, panel, depth, row, column, k > 0,
                             work.tile);
            break;
          case 2:
            multiply_tile<2>(problem, task, tile_rows, stride, panel, depth, row, column, k > 0,
                             work.tile);
            break;
          default:
            multiply_tile<Shape::kVectors>(problem, task, tile_rows, stride, panel, depth, row,
                                           column, k > 0, work.tile);
        }
      }
    }
  }

  // Asks for what the next block of depth will copy, a share at every tile of rows: both matrices are
  // read in pieces too short for the processor to foresee.
  REGARD_INLINE void prefetch_next(const MatmulProblem& problem, const MatmulTask& task,
                                   std::int64_t k, std::int64_t depth, std::int64_t row,
                                   std::int64_t tiles) {
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
    const Operand &a = problem.a, &b = problem.b;
    if (a.column_stride == 1) {
      const T* from = static_cast<const T*>(task.a) + (task.row_begin + row) * a.row_stride + k;
      const std::int64_t left = task.row_end - task.row_begin - row;
      for (std::int64_t r = 0; r < kRows && r < left; ++r)
        for (std::int64_t i = 0; i < depth; i += kLine)
          __builtin_prefetch(from + r * a.row_stride + i, 0, 2);
    }
    if (b.column_stride == 1) {
      const std::int64_t tile = row / kRows;
      for (std::int64_t i = depth * tile / tiles; i < depth * (tile + 1) / tiles; ++i)
        for (std::int64_t j = task.column_begin; j < task.column_end; j += kLine)
          __builtin_prefetch(static_cast<const T*>(task.b) + (k + i) * b.row_stride + j, 0, 2);
    }
  }

  template <int kVectors>
  REGARD_INLINE void multiply_tile(const MatmulProblem& problem, const MatmulTask& task,
                                   const T* rows, std::int64_t row_stride, const T* panel,
                                   std::int64_t depth, std::int64_t row, std::int64_t column,
                                   bool adds, T* tile) {
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    multiply_rows<T, kRows, kVectors>(acc, rows, row_stride, panel, kPanel, depth);
    const std::int64_t left = task.row_end - task.row_begin - row;
    const int present = static_cast<int>(left < kRows ? left : kRows);
    const int columns = columns_from(task, column);
    const Operand& c = problem.c;
    T* to = static_cast<T*>(task.c) + (task.row_begin + row) * c.row_stride +
            column * c.column_stride;
    if (c.column_stride == 1 && present == kRows && columns == kVectors * kLanes<T>) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          T* at = to + r * c.row_stride + v * kLanes<T>;
          store(at, adds ? load<T>(at) + acc[r][v] : acc[r][v]);
        }
      return;
    }
    store_tile<T, kRows, kVectors>(acc, tile);
    for (int r = 0; r < present; ++r)
      for (int i = 0; i < columns; ++i) {
        T& at = to[r * c.row_stride + i * c.column_stride];
        const T product = tile[r * kVectors * kLanes<T> + i];
        at = adds ? at + product : product;
      }
  }
};

}  // namespace
}  // namespace regard
