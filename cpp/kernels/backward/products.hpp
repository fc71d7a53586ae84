// The gradients of keys and values, for the keys of a block that a strip sees: rows are keys, dimensions lie in lanes,
// summed over the strip's queries. Those of queries are add_columns (../attention/block_products.hpp).
#pragma once

#include "../attention/block_products.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

// As multiply_rows, but a term whose left factor is exactly -0.0 (a hidden key, see softmax_state.hpp) is left out,
// so that a NaN or inf in the other goes nowhere.
template <class T, int kRows, int kVectors>
REGARD_INLINE void multiply_shown_rows(Accumulators<T, kRows, kVectors>& acc, const T* a, std::ptrdiff_t row_stride,
                                       const T* b, std::ptrdiff_t b_stride, std::int64_t depth) {
  const Mask<T> hidden_bits = as_bits<T>(broadcast(T(-0.0)));
  for (std::int64_t k = 0; k < depth; ++k)
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> left = broadcast(a[r * row_stride + k]);
      const Mask<T> is_hidden = as_bits<T>(left) == hidden_bits;
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = select<T>(is_hidden, acc[r][v], fma(left, load(b + k * b_stride + v * kLanes<T>), acc[r][v]));
    }
}

template <class Shape>
struct BackwardProducts {
  using T = typename Shape::Element;
  // Rows and vectors of a tile whose rows are keys: as many accumulators as the forward's tile, with two or four
  // vectors, which divide the usual dimensions.
  static constexpr int kKeyRows = 6;
  static constexpr int kVectors = Shape::kRegisterCount >= 32 ? 4 : 2;
  static_assert(kKeyRows * kVectors + kVectors + 1 <= Shape::kRegisterCount, "the tile does not fit in registers");
  static_assert(Shape::kRows % 2 == 0, "what is left of a run is a whole number of tiles of 2 rows");

  // sums[key][column] += sum over the strip's rows of block[key][row] rows[row][column], for the keys of the runs.
  // `block` is [keys][lanes], `sums` begins with the block's first key. `selects` leaves out what is hidden.
  REGARD_INLINE void add_rows(bool selects, const KeyRuns<Shape>& runs, const T* block, const RowsOfStrip<T>& rows,
                              const StripRows<T>& strip, std::int64_t padded_columns, T* sums) {
    if (selects)
      add_panels<true>(runs, block, rows, strip, padded_columns, sums);
    else
      add_panels<false>(runs, block, rows, strip, padded_columns, sums);
  }

 private:
  template <bool kSelect>
  REGARD_NOINLINE void add_panels(const KeyRuns<Shape>& runs, const T* block, const RowsOfStrip<T>& rows,
                                  const StripRows<T>& strip, std::int64_t padded_columns, T* sums) {
    const std::ptrdiff_t width = strip.vectors * kLanes<T>;
    std::int64_t column = 0;
    for (; column + kVectors * kLanes<T> <= padded_columns; column += kVectors * kLanes<T>)
      add_panel<kVectors, kSelect>(runs, block, width, rows.from + column, rows.stride, strip.rows, padded_columns,
                                   sums + column);
    for (; column < padded_columns; column += kLanes<T>)
      add_panel<1, kSelect>(runs, block, width, rows.from + column, rows.stride, strip.rows, padded_columns,
                            sums + column);
  }

  template <int kPanelVectors, bool kSelect>
  REGARD_INLINE void add_panel(const KeyRuns<Shape>& runs, const T* block, std::ptrdiff_t width, const T* rows,
                               std::ptrdiff_t row_stride, int row_count, std::int64_t stride, T* sums) {
    for (int i = 0; i < runs.count; ++i) {
      // A run's last tile is whole: rows after the run's end are those of hidden keys.
      const int end = static_cast<int>(round_up(runs.run[i].end, Shape::kRows));
      int key = runs.run[i].begin;
      const auto add = [&](auto tile) {
        add_products<tile.value, kPanelVectors, kSelect>(block + key * width, width, rows, row_stride, row_count,
                                                         sums + key * stride, stride);
        key += tile.value;
      };
      while (key + kKeyRows <= end) add(Constant<kKeyRows>{});
      if (key + 4 <= end) add(Constant<4>{});
      if (key + 2 <= end) add(Constant<2>{});
    }
  }

  template <int kRows, int kPanelVectors, bool kSelect>
  REGARD_INLINE void add_products(const T* block, std::ptrdiff_t width, const T* rows, std::ptrdiff_t row_stride,
                                  int row_count, T* sums, std::int64_t stride) {
    Accumulators<T, kRows, kPanelVectors> acc;
    clear<T, kRows, kPanelVectors>(acc);
    if constexpr (kSelect)
      multiply_shown_rows<T, kRows, kPanelVectors>(acc, block, width, rows, row_stride, row_count);
    else
      multiply_rows<T, kRows, kPanelVectors>(acc, block, width, rows, row_stride, row_count);
    add_tile<T, kRows, kPanelVectors>(acc, sums, stride);
  }
};

}  // namespace
}  // namespace regard
