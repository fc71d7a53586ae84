// Narrow numbers of b become T on their way into a panel, so that they lie in memory as they came, and a product
// has the bits of one with an array of T:
//
//   float16, bfloat16   exactly
//   int8                number * scale, rounded once
//
// Where the numbers of a column lie side by side (a layer's weight, transposed), squares of lanes with two or
// four numbers each are transposed, and then taken apart (lane_parts.hpp).
#pragma once

#include "../../simd/lane_parts.hpp"
#include "../../simd/transpose.hpp"
#include "../elements.hpp"
#include "../../problem/matmul.hpp"

namespace regard {
namespace {

// One vector of columns of b, for the rows of one group.
template <class T, class From>
struct NarrowColumns {
  const From* first;
  std::int64_t row_stride;
  std::int64_t column_stride;
  int count;           // of columns; lanes beyond them repeat the last
  std::int64_t depth;  // rows, at most kScaleGroup
  Vec<T> scales;       // where From is int8
  std::int64_t ahead;  // how many elements farther on another thing is that will be read soon
};

template <class From, std::size_t... kPart>
REGARD_INLINE void store_parts(const Mask<float>& lanes, Vec<float> factors, float* to, std::ptrdiff_t to_stride,
                               std::index_sequence<kPart...>) {
  const Mask<float> parts = parts_of<From>(lanes);
  const auto scaled = [&](Vec<float> value) { return sizeof(From) == 1 ? value * factors : value; };
  (store(to + static_cast<std::ptrdiff_t>(kPart) * to_stride,
         scaled(part_of<From, static_cast<int>(kPart)>(parts))),
   ...);
}

// kLaneParts * kLanes rows of b, of columns whose numbers lie side by side from columns[lane] on. `factors` are the
// scales of integers that are multiplied by kByteOnTop.
template <class From>
REGARD_INLINE void expand_square(const From* const* columns, std::int64_t row, Vec<float> factors, float* to,
                                 std::ptrdiff_t to_stride) {
  constexpr int kWidth = kLanes<float>, kParts = kLaneParts<From>;
  Vec<float> square[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) __builtin_memcpy(&square[i], columns[i] + row, sizeof square[i]);
  transpose<float>(square);
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i)
    store_parts<From>(as_bits<float>(square[i]), factors, to + kParts * i * to_stride, to_stride,
                      std::make_index_sequence<kParts>());
}

template <class From>
REGARD_NOINLINE void expand_contiguous(const NarrowColumns<float, From>& part, float* to, std::ptrdiff_t to_stride) {
  constexpr int kWidth = kLanes<float>;
  constexpr std::int64_t kStep = kLaneParts<From> * kWidth;
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(From));
  const Vec<float> factors = part.scales * broadcast(static_cast<float>(1 / kByteOnTop));
  const From* columns[kWidth];
  for (int i = 0; i < kWidth; ++i)
    columns[i] = part.first + (i < part.count ? i : part.count - 1) * part.column_stride;
  // The columns are read a line at a time, by turns, which the processor does not foresee.
  for (std::int64_t row = 0; row < part.depth; row += kLine)
    for (int i = 0; i < kWidth; ++i) __builtin_prefetch(columns[i] + row + part.ahead, 0, 2);
  std::int64_t row = 0;
  for (; row + kStep <= part.depth; row += kStep)
    expand_square<From>(columns, row, factors, to + row * to_stride, to_stride);
  if (row == part.depth) return;
  From rest[kWidth][kStep] = {};
  const From* rests[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    for (std::int64_t j = row; j < part.depth; ++j) rest[i][j - row] = columns[i][j];
    rests[i] = rest[i];
  }
  float expanded[kStep * kWidth];
  expand_square<From>(rests, 0, factors, expanded, kWidth);
  for (std::int64_t j = row; j < part.depth; ++j) store(to + j * to_stride, load(expanded + (j - row) * kWidth));
}

// Of any strides.
template <class T, class From>
REGARD_NOINLINE void expand_strided(const NarrowColumns<T, From>& part, T* to, std::ptrdiff_t to_stride) {
  constexpr int kWidth = kLanes<T>;
  const bool is_whole = part.column_stride == 1 && part.count == kWidth;
  for (std::int64_t row = 0; row < part.depth; ++row) {
    const From* from = part.first + row * part.row_stride;
    Vec<T> value;
    if (is_whole)
      value = load_as<T>(from);
    else
      for (int i = 0; i < kWidth; ++i)
        value[i] = static_cast<T>(widen(from[(i < part.count ? i : part.count - 1) * part.column_stride]));
    if constexpr (sizeof(From) == 1) value *= part.scales;
    store(to + row * to_stride, value);
  }
}

template <class T>
REGARD_INLINE Vec<T> scales_of(const Operand& scales, std::int64_t group, std::int64_t column, int count) {
  const float* from = static_cast<const float*>(scales.data) + group * scales.row_stride + column * scales.column_stride;
  if (sizeof(T) == 4 && scales.column_stride == 1 && count == kLanes<T>) return load_as<T>(from);
  Vec<T> result;
  for (int i = 0; i < kLanes<T>; ++i)
    result[i] = static_cast<T>(from[(i < count ? i : count - 1) * scales.column_stride]);
  return result;
}

// to[row][lane] of the rows k .. k + depth - 1 of a narrow b, and of `count` columns, rounded up to whole vectors. k is a
// multiple of kScaleGroup. What lies `ahead` columns farther on is asked for.
template <class T>
REGARD_NOINLINE void expand_panel(const MatmulProblem& problem, const MatmulTask& task, std::int64_t k,
                                  std::int64_t depth, std::int64_t column, std::int64_t count, std::int64_t ahead,
                                  T* to, std::int64_t to_stride) {
  const Operand& b = problem.b;
  with_stored_element<T>(b.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    if constexpr (sizeof(From) < 4) {
      NarrowColumns<T, From> part{};
      part.row_stride = b.row_stride;
      part.column_stride = b.column_stride;
      part.ahead = ahead * b.column_stride;
      for (std::int64_t lane = 0; lane < count; lane += kLanes<T>) {
        part.count = static_cast<int>(count - lane < kLanes<T> ? count - lane : kLanes<T>);
        for (std::int64_t row = 0; row < depth; row += kScaleGroup) {
          part.depth = depth - row < kScaleGroup ? depth - row : kScaleGroup;
          part.first = static_cast<const From*>(task.b) + (k + row) * b.row_stride + (column + lane) * b.column_stride;
          if constexpr (sizeof(From) == 1)
            part.scales = scales_of<T>(problem.scales, (k + row) / kScaleGroup, column + lane, part.count);
          T* at = to + row * to_stride + lane;
          if constexpr (sizeof(T) == 4) {
            if (b.row_stride == 1) {
              expand_contiguous<From>(part, at, to_stride);
              continue;
            }
          }
          expand_strided<T, From>(part, at, to_stride);
        }
      }
    }
  });
}

}  // namespace
}  // namespace regard
