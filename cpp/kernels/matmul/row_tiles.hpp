// Copies rows of a in the order in which tiles read them: [tile][depth][tile rows]. The tiles of a
// block form a single stream, which the processor prefetches; separate rows would be several short
// streams.
#pragma once

#include "../../simd/transpose.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

// Pads the last tile with zero rows.
template <class T, int kRows>
REGARD_NOINLINE void pack_row_tiles(const T* from, std::int64_t row_stride,
                                    std::int64_t column_stride, std::int64_t rows,
                                    std::int64_t depth, T* to) {
  constexpr int kWidth = kLanes<T>;
  // A square of the transpose has rows of one tile or of several.
  constexpr int kTogether = kWidth > kRows ? kWidth : kRows;
  constexpr int kPart = kWidth < kRows ? kWidth : kRows;
  for (std::int64_t row = 0; row < rows; row += kTogether) {
    for (int first = 0; first < kTogether && row + first < round_up(rows, kRows); first += kWidth) {
      std::int64_t k = 0;
      const auto place = [&](int part) {  // of column k of the part
        const std::int64_t at = row + first + part;
        return to + at / kRows * kRows * depth + at % kRows;
      };
      const auto is_padding = [&](int part) { return row + first + part >= round_up(rows, kRows); };
      if (column_stride == 1) {
        for (; k + kWidth <= depth; k += kWidth) {
          Vec<T> square[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i)
            square[i] =
                row + first + i < rows ? load(from + (row + first + i) * row_stride + k) : Vec<T>{};
          transpose<T>(square);
#pragma GCC unroll 4
          for (int part = 0; part < kWidth; part += kPart) {
            if (is_padding(part)) break;
            T* const at = place(part) + k * kRows;
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i)
              __builtin_memcpy(at + i * kRows, reinterpret_cast<const T*>(&square[i]) + part,
                               kPart * sizeof(T));
          }
        }
      }
      for (; k < depth; ++k)
        for (int i = 0; i < kWidth && !is_padding(i); ++i)
          place(i)[k * kRows] = row + first + i < rows
                                    ? from[(row + first + i) * row_stride + k * column_stride]
                                    : T(0);
    }
  }
}

}  // namespace
}  // namespace regard
