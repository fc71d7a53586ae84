// Rows of keys or values, or of arrays with the same layout, as kernels read them in whole tiles:
// in place, or copied if the array's strides, type or end require it.
#pragma once

#include "../kv_rows.hpp"

namespace regard {
namespace {

template <class T>
struct TileRows {
  const T* from;  // null if nothing has been provided
  std::ptrdiff_t stride;
  // The rows starting at `whole`, padded with zeros to a tile, if the array's rows are not whole
  // tiles.
  const T* tail;
  std::ptrdiff_t tail_stride;
  std::int64_t whole;
  const T* scales;  // of the rows; null if they have none
};

// Memory for copies of rows that cannot be read in place.
template <class T>
struct RowCopies {
  T* rows;    // a whole number of tiles
  T* tail;    // a tile; null if rows are never read as tiles
  T* scales;  // null if rows have none
};

template <class T>
REGARD_INLINE const T* tile_row(const TileRows<T>& rows, std::int64_t row) {
  return row < rows.whole ? rows.from + row * rows.stride
                          : rows.tail + (row - rows.whole) * rows.tail_stride;
}

// The rows starting at `first`.
template <class T>
REGARD_INLINE TileRows<T> rows_from(const TileRows<T>& rows, std::int64_t first) {
  return {rows.from + first * rows.stride,
          rows.stride,
          rows.tail,
          rows.tail_stride,
          rows.whole - first,
          rows.scales ? rows.scales + first : nullptr};
}

template <class T>
REGARD_INLINE bool reads_in_place(const Operand& operand) {
  return is_stored_as<T>(operand.element) && operand.column_stride == 1 &&
         !are_far_apart(operand.row_stride * static_cast<std::int64_t>(sizeof(T)));
}

// Provides `count` rows starting at row `first`. Null if there is no array.
template <class T, int kRows>
REGARD_NOINLINE TileRows<T> provide_rows(const KvRows& rows, std::int64_t first, std::int64_t count,
                                         std::int64_t columns, std::int64_t padded_columns,
                                         const RowCopies<T>& copies) {
  if (!rows.data) return {};
  const std::int64_t whole = count / kRows * kRows;
  if (!reads_in_place<T>(rows.operand) || columns != padded_columns ||
      !lie_together(rows, first, count)) {
    copy_rows(rows, first, count, columns, copies.rows, round_up(count, kRows), padded_columns);
    if (scale_products(rows))
      copy_scales(rows, first, count, copies.scales, round_up(count, kRows));
    return {copies.rows,    padded_columns, copies.rows + whole * padded_columns,
            padded_columns, whole,          scale_products(rows) ? copies.scales : nullptr};
  }
  if (copies.tail && whole < count)
    copy_rows(rows, first + whole, count - whole, columns, copies.tail, kRows, padded_columns);
  return {static_cast<const T*>(row_at(rows, first)),
          rows.operand.row_stride,
          copies.tail,
          padded_columns,
          whole,
          nullptr};
}

// x - x is +0, with all bits clear, for finite x only.
template <class From>
REGARD_NOINLINE bool rows_are_finite(const From* from, std::ptrdiff_t stride, std::int64_t rows,
                                     std::int64_t columns) {
  using T = decltype(widen(From{}));
  Mask<T> bits{};
  for (std::int64_t row = 0; row < rows; ++row, from += stride) {
    std::int64_t i = 0;
    for (; i + kLanes<T> <= columns; i += kLanes<T>) {
      const Vec<T> vector = load_as<T>(from + i);
      bits |= as_bits<T>(vector - vector);
    }
    for (; i < columns; ++i) {
      const T number = widen(from[i]);
      bits |= as_bits<T>(broadcast(number - number));
    }
  }
  return !any<T>(bits != 0);
}

}  // namespace
}  // namespace regard
