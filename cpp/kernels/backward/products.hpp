// The products of the gradients, for the keys of a block that a strip sees:
//
//   gradients of keys and values   rows are keys, dimensions lie in lanes, summed over the strip's queries
//   gradients of queries           rows are dimensions, queries lie in lanes, summed over the keys
#pragma once

#include "../attention/key_block.hpp"
#include "../micro_kernel.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

// What a strip sees of a block.
template <class Shape>
struct KeyRuns {
  KeyRun run[Shape::kBlockKeys / Shape::kRows];
  int count = 0;
  bool hide_something = false;  // of a tile of theirs some lane does not see some key
};

// Adds the keys of a tile, which come after those that are there.
template <class Shape>
REGARD_INLINE void add_tile_to_runs(KeyRuns<Shape>& runs, int begin, int end, bool hides) {
  if (runs.count > 0 && runs.run[runs.count - 1].end == begin)
    runs.run[runs.count - 1].end = end;
  else
    runs.run[runs.count++] = {begin, end};
  runs.hide_something |= hides;
}

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
  // `block` is [keys][kWidth], `sums` begins with the block's first key.
  template <int kWidth, bool kSelect>
  REGARD_NOINLINE void add_rows(const KeyRuns<Shape>& runs, const T* block, const RowsOfStrip<T>& rows, int row_count,
                                std::int64_t padded_columns, T* sums) {
    std::int64_t column = 0;
    for (; column + kVectors * kLanes<T> <= padded_columns; column += kVectors * kLanes<T>)
      add_panel<kWidth, kVectors, kSelect>(runs, block, rows.from + column, rows.stride, row_count, padded_columns,
                                           sums + column);
    for (; column < padded_columns; column += kLanes<T>)
      add_panel<kWidth, 1, kSelect>(runs, block, rows.from + column, rows.stride, row_count, padded_columns,
                                    sums + column);
  }

  // sums[column][lane] += sum over the runs' keys of keys[key][column] block[key][lane], or = where they are fresh.
  template <int kVectorsOfStrip, bool kSelect>
  REGARD_NOINLINE void add_columns(const KeyRuns<Shape>& runs, const T* block, const T* keys,
                                   std::ptrdiff_t key_stride, std::int64_t padded_columns, bool is_fresh, T* sums) {
    constexpr int kWidth = kVectorsOfStrip * kLanes<T>;
    constexpr int kRows = Shape::kRows;
    for (std::int64_t column = 0; column < padded_columns; column += kRows) {
      Accumulators<T, kRows, kVectorsOfStrip> acc;
      clear<T, kRows, kVectorsOfStrip>(acc);
      for (int i = 0; i < runs.count; ++i)
        multiply_columns<T, kRows, kVectorsOfStrip, kSelect>(acc, keys + runs.run[i].begin * key_stride + column,
                                                             key_stride, block + runs.run[i].begin * kWidth, kWidth,
                                                             runs.run[i].end - runs.run[i].begin);
      T* to = sums + column * kWidth;
      if (is_fresh) {
        store_tile<T, kRows, kVectorsOfStrip>(acc, to);
        continue;
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectorsOfStrip; ++v) {
          T* at = to + (r * kVectorsOfStrip + v) * kLanes<T>;
          store(at, load<T>(at) + acc[r][v]);
        }
    }
  }

 private:
  template <int kWidth, int kPanelVectors, bool kSelect>
  REGARD_INLINE void add_panel(const KeyRuns<Shape>& runs, const T* block, const T* rows, std::ptrdiff_t row_stride,
                               int row_count, std::int64_t stride, T* sums) {
    for (int i = 0; i < runs.count; ++i) {
      // A run's last tile is whole: rows after the run's end are those of hidden keys.
      const int end = static_cast<int>(round_up(runs.run[i].end, Shape::kRows));
      int key = runs.run[i].begin;
      const auto add = [&](auto tile) {
        add_tile<tile.value, kPanelVectors, kSelect>(block + key * kWidth, kWidth, rows, row_stride, row_count,
                                                     sums + key * stride, stride);
        key += tile.value;
      };
      while (key + kKeyRows <= end) add(Constant<kKeyRows>{});
      if (key + 4 <= end) add(Constant<4>{});
      if (key + 2 <= end) add(Constant<2>{});
    }
  }

  template <int kRows, int kPanelVectors, bool kSelect>
  REGARD_INLINE void add_tile(const T* block, std::ptrdiff_t width, const T* rows, std::ptrdiff_t row_stride,
                              int row_count, T* sums, std::int64_t stride) {
    Accumulators<T, kRows, kPanelVectors> acc;
    clear<T, kRows, kPanelVectors>(acc);
    if constexpr (kSelect)
      multiply_shown_rows<T, kRows, kPanelVectors>(acc, block, width, rows, row_stride, row_count);
    else
      multiply_rows<T, kRows, kPanelVectors>(acc, block, width, rows, row_stride, row_count);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v) {
        T* at = sums + r * stride + v * kLanes<T>;
        store(at, load<T>(at) + acc[r][v]);
      }
  }
};

}  // namespace
}  // namespace regard
