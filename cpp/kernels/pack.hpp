// Moves data between the caller's arrays (one row per query, any strides) and strips (one lane per
// query, one row of lanes per dimension), and copies blocks of keys and values that cannot be read
// in place.
#pragma once

#include "../simd/half.hpp"
#include "../simd/transpose.hpp"

namespace regard {
namespace {

struct Identity {
  template <class V>
  V operator()(V value) const {
    return value;
  }
};

// to[column * to_stride + lane] = op(rows[lane][column * column_stride]). Lanes from row_count up
// to the next whole vector become op(0).
template <class T, class From, class Op>
REGARD_INLINE void rows_to_lanes(const From* const* rows, int row_count, std::int64_t column_stride,
                                 std::int64_t columns, T* to, std::int64_t to_stride, Op op) {
  constexpr int kWidth = kLanes<T>;
  for (int lane = 0; lane < row_count; lane += kWidth) {
    const int present = row_count - lane < kWidth ? row_count - lane : kWidth;
    std::int64_t column = 0;
    if (column_stride == 1 && columns >= kWidth) {
      for (; column < columns; column += kWidth) {
        // The last square overlaps the one before it.
        const std::int64_t at = column + kWidth <= columns ? column : columns - kWidth;
        Vec<T> square[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i)
          square[i] = i < present ? load_as<T>(rows[lane + i] + at) : Vec<T>{};
        transpose<T>(square);
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) store(to + (at + i) * to_stride + lane, op(square[i]));
      }
    }
    for (; column < columns; ++column) {
      Vec<T> gathered{};
      for (int i = 0; i < present; ++i)
        gathered[i] = static_cast<T>(widen(rows[lane + i][column * column_stride]));
      store(to + column * to_stride + lane, op(gathered));
    }
  }
}

// rows[lane][column * column_stride] = op(from[column * from_stride + lane], first lane of vector)
template <class T, class To, class Op>
REGARD_INLINE void lanes_to_rows(const T* from, std::int64_t from_stride, std::int64_t columns,
                                 To* const* rows, int row_count, std::int64_t column_stride,
                                 Op op) {
  constexpr int kWidth = kLanes<T>;
  for (int lane = 0; lane < row_count; lane += kWidth) {
    const int present = row_count - lane < kWidth ? row_count - lane : kWidth;
    std::int64_t column = 0;
    if (column_stride == 1) {
      for (; column + kWidth <= columns; column += kWidth) {
        Vec<T> square[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i)
          square[i] = op(load(from + (column + i) * from_stride + lane), lane);
        transpose<T>(square);
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i)
          if (i < present) store_as<T>(rows[lane + i] + column, square[i]);
      }
    }
    for (; column < columns; ++column) {
      const Vec<T> value = op(load(from + column * from_stride + lane), lane);
      for (int i = 0; i < present; ++i) narrow(value[i], rows[lane + i][column * column_stride]);
    }
  }
}

// to[column * stride] = value_at(column), a vector of columns at a time.
template <class T, class To, class ValueAt>
REGARD_INLINE void write_row(To* to, std::int64_t stride, std::int64_t columns, ValueAt value_at) {
  std::int64_t column = 0;
  if (stride == 1)
    for (; column + kLanes<T> <= columns; column += kLanes<T>)
      store_as<T>(to + column, value_at(column));
  for (; column < columns; column += kLanes<T>) {
    const Vec<T> value = value_at(column);
    for (int i = 0; i < kLanes<T> && column + i < columns; ++i)
      narrow(value[i], to[(column + i) * stride]);
  }
}

// Whether rows are so far apart that they are copied: each would need a separate page, or one cache
// line of each of a block's 96 rows would not fit in L1. It has 64 sets of 8 lines, of which rows
// that are 8 lines apart use 8. Rows of latent attention (MLA), 2304 bytes apart, use 16.
REGARD_INLINE bool are_far_apart(std::int64_t bytes) {
  if (bytes < 0) bytes = -bytes;
  return bytes >= 4096 || (bytes >= 2048 && bytes % (8 * kLineBytes) == 0);
}

// Copies rows x columns elements to rows of padded_columns elements, with zeros to their right and
// below them.
template <class T, class From>
REGARD_NOINLINE void copy_padded(const From* from, std::int64_t row_stride,
                                 std::int64_t column_stride, std::int64_t rows,
                                 std::int64_t columns, T* to, std::int64_t padded_rows,
                                 std::int64_t padded_columns) {
  for (std::int64_t row = 0; row < padded_rows; ++row, to += padded_columns) {
    std::int64_t column = 0;
    if (row < rows) {
      const From* line = from + row * row_stride;
      if (column_stride == 1)
        for (; column + kLanes<T> <= columns; column += kLanes<T>)
          store(to + column, load_as<T>(line + column));
      for (; column < columns; ++column)
        to[column] = static_cast<T>(widen(line[column * column_stride]));
    }
    for (; column < padded_columns; ++column) to[column] = T(0);
  }
}

}  // namespace
}  // namespace regard
