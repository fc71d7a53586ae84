// The product of one block of depth, for the rows and columns of a task:
//
//   for a panel of columns        stays in L1
//     for a tile of rows          c's tile in registers
#pragma once

#include "../micro_kernel.hpp"
#include "../../problem/matmul.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

// The part of a or b that a task reads. Its first rows or columns, in whole tiles or panels, are
// read in place. The others are copied: rows of a as [tile][depth][tile rows], columns of b as
// [panel][depth][lanes].
template <class T>
struct BlockPart {
  const T* in_place;
  std::int64_t row_stride;
  std::int64_t whole;
  const T* copied;
};

template <class T>
struct Block {
  BlockPart<T> rows;
  BlockPart<T> columns;
  std::int64_t depth;
  bool adds;  // to the contents of c, which are the sum of the earlier blocks
};

template <class Shape>
struct MatmulBlock {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kPanel = Shape::kStripLanes;
  static constexpr std::int64_t kTileElements = kRows * kPanel;

  static_assert(Shape::kVectors == 3, "run names the widths of a panel one by one");

  // Calls between_tiles(tile) for every tile of rows of the first panel. `tile` has room for
  // kTileElements.
  template <class BetweenTiles>
  REGARD_INLINE void run(const MatmulProblem& problem, const MatmulTask& task,
                         const Block<T>& block, T* tile, BetweenTiles between_tiles) {
    const BlockPart<T>& rows = block.rows;
    const std::int64_t count = task.row_end - task.row_begin;
    for (std::int64_t column = task.column_begin; column < task.column_end; column += kPanel) {
      const int columns = columns_from(task, column);
      const std::int64_t before = column - task.column_begin;
      const bool lies_there = before < block.columns.whole;
      const T* panel = lies_there
                           ? block.columns.in_place + before
                           : block.columns.copied + (before - block.columns.whole) * block.depth;
      const std::int64_t panel_stride = lies_there ? block.columns.row_stride : kPanel;
      for (std::int64_t row = 0; row < count; row += kRows) {
        if (column == task.column_begin) between_tiles(row / kRows);
        const bool is_in_place = row < rows.whole;
        const T* from = is_in_place ? rows.in_place + row * rows.row_stride
                                    : rows.copied + (row - rows.whole) * block.depth;
        const Rows of_tile{from, is_in_place, rows.row_stride};
        const std::int64_t left = count - row;
        const Place place{column_of(problem, task, row, column),
                          left < kRows ? static_cast<int>(left) : kRows, columns};
        switch ((columns + kLanes<T> - 1) / kLanes<T>) {
          case 1:
            multiply_tile<1>(problem.c, place, of_tile, panel, panel_stride, block, tile);
            break;
          case 2:
            multiply_tile<2>(problem.c, place, of_tile, panel, panel_stride, block, tile);
            break;
          default:
            multiply_tile<Shape::kVectors>(problem.c, place, of_tile, panel, panel_stride, block,
                                           tile);
        }
      }
    }
  }

  static int columns_from(const MatmulTask& task, std::int64_t column) {
    const std::int64_t left = task.column_end - column;
    return static_cast<int>(left < kPanel ? left : kPanel);
  }

 private:
  // The destination of a tile's product.
  struct Place {
    T* to;
    int rows;
    int columns;
  };

  static T* column_of(const MatmulProblem& problem, const MatmulTask& task, std::int64_t row,
                      std::int64_t column) {
    const Operand& c = problem.c;
    return static_cast<T*>(task.c) + (task.row_begin + row) * c.row_stride +
           column * c.column_stride;
  }

  // The rows of a tile, in place or copied.
  struct Rows {
    const T* from;
    bool lie_there;
    std::int64_t stride;
  };

  template <int kVectors>
  REGARD_INLINE void multiply_tile(const Operand& c, const Place& place, const Rows& rows,
                                   const T* panel, std::int64_t panel_stride, const Block<T>& block,
                                   T* tile) {
    constexpr int kWidth = kVectors * kLanes<T>;
    const bool is_whole = c.column_stride == 1 && place.rows == kRows && place.columns == kWidth;
    // c's tile is in L2 or beyond, so it is prefetched during the product.
    if (is_whole && block.adds) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          __builtin_prefetch(place.to + r * c.row_stride + v * kLanes<T>, 1, 3);
    }
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    if (rows.lie_there)
      multiply_rows<T, kRows, kVectors>(acc, rows.from, rows.stride, panel, panel_stride,
                                        block.depth);
    else
      multiply_columns<T, kRows, kVectors, false>(acc, rows.from, kRows, panel, panel_stride,
                                                  block.depth);
    if (is_whole)
      return block.adds ? add_tile<T, kRows, kVectors>(acc, place.to, place.to, c.row_stride)
                        : store_tile<T, kRows, kVectors>(acc, place.to, c.row_stride);
    store_tile<T, kRows, kVectors>(acc, tile, kWidth);
    for (int r = 0; r < place.rows; ++r)
      for (int i = 0; i < place.columns; ++i) {
        T& at = place.to[r * c.row_stride + i * c.column_stride];
        const T product = tile[r * kWidth + i];
        at = block.adds ? at + product : product;
      }
  }
};

}  // namespace
}  // namespace regard
