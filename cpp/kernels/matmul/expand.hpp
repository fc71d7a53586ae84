// Narrow numbers of b are converted to T while they are copied to a panel. In memory they keep
// their type, and a product has the same bits as a product with an array of T:
//
//   float16, bfloat16   exactly
//   int8                number * scale, rounded once
//
// If the numbers of a column are contiguous (the transposed weight of a layer), squares whose lanes
// hold two or four numbers each are transposed and then split (lane_parts.hpp).
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
  int count;           // number of columns; lanes beyond them repeat the last column
  std::int64_t depth;  // rows, at most kScaleGroup
  Vec<T> scales;       // if From is int8
  std::int64_t ahead;  // the distance, in elements, to what is prefetched
};

template <class From, std::ptrdiff_t kToStride, std::size_t... kPart>
REGARD_INLINE void store_parts(const Mask<float>& lanes, Vec<float> factors, float* to,
                               std::index_sequence<kPart...>) {
  const Mask<float> parts = parts_of<From>(lanes);
  const auto scaled = [&](Vec<float> value) { return sizeof(From) == 1 ? value * factors : value; };
  (store(to + static_cast<std::ptrdiff_t>(kPart) * kToStride,
         scaled(part_of<From, static_cast<int>(kPart)>(parts))),
   ...);
}

// Expands whole vectors of columns and a whole number of squares. The numbers of a column are
// contiguous.
template <class From, std::ptrdiff_t kToStride>
REGARD_NOINLINE void expand_squares(const From* from, std::int64_t column_stride,
                                    std::int64_t depth, Vec<float> factors, std::int64_t ahead,
                                    float* to) {
  constexpr int kWidth = kLanes<float>, kParts = kLaneParts<From>;
  for (; depth > 0; depth -= kParts * kWidth) {
    Vec<float> square[kWidth];
    const From* columns = from;
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      // If the compiler kept each column's address in a register, most would be spilled to the
      // stack.
      if (i % 4 == 0) forget(columns, column_stride);
      const From* column = columns + i % 4 * column_stride;
      __builtin_memcpy(&square[i], column, sizeof square[i]);
      // The columns alternate after each line, a pattern that the processor does not detect.
      __builtin_prefetch(column + ahead, 0, 2);
      if (i % 4 == 3) columns += 4 * column_stride;
    }
    transpose<float>(square);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i)
      store_parts<From, kToStride>(as_bits<float>(square[i]), factors, to + kParts * i * kToStride,
                                   std::make_index_sequence<kParts>());
    from += kParts * kWidth;
    to += kParts * kWidth * kToStride;
  }
}

template <class From, std::ptrdiff_t kToStride>
REGARD_NOINLINE void expand_contiguous(const NarrowColumns<float, From>& part, float* to) {
  constexpr int kWidth = kLanes<float>;
  constexpr std::int64_t kStep = kLaneParts<From> * kWidth;
  const Vec<float> factors = part.scales * broadcast(static_cast<float>(1 / kByteOnTop));
  const std::int64_t whole = part.count == kWidth ? part.depth / kStep * kStep : 0;
  if (whole > 0)
    expand_squares<From, kToStride>(part.first, part.column_stride, whole, factors, part.ahead, to);
  if (whole == part.depth) return;
  From rest[kWidth * kScaleGroup] = {};
  for (int i = 0; i < kWidth; ++i) {
    const From* column = part.first + (i < part.count ? i : part.count - 1) * part.column_stride;
    for (std::int64_t row = whole; row < part.depth; ++row)
      rest[i * kScaleGroup + row - whole] = column[row];
  }
  float expanded[kWidth * kScaleGroup];
  const std::int64_t left = part.depth - whole;
  expand_squares<From, kWidth>(rest, kScaleGroup, (left + kStep - 1) / kStep * kStep, factors, 0,
                               expanded);
  for (std::int64_t row = 0; row < left; ++row)
    store(to + (whole + row) * kToStride, load(expanded + row * kWidth));
}

// Handles any strides.
template <class T, class From>
REGARD_NOINLINE void expand_strided(const NarrowColumns<T, From>& part, T* to,
                                    std::ptrdiff_t to_stride) {
  constexpr int kWidth = kLanes<T>;
  const bool is_whole = part.column_stride == 1 && part.count == kWidth;
  for (std::int64_t row = 0; row < part.depth; ++row) {
    const From* from = part.first + row * part.row_stride;
    Vec<T> value;
    if (is_whole)
      value = load_as<T>(from);
    else
      for (int i = 0; i < kWidth; ++i)
        value[i] =
            static_cast<T>(widen(from[(i < part.count ? i : part.count - 1) * part.column_stride]));
    if constexpr (sizeof(From) == 1) value *= part.scales;
    store(to + row * to_stride, value);
  }
}

template <class T>
REGARD_INLINE Vec<T> scales_of(const Operand& scales, std::int64_t group, std::int64_t column,
                               int count) {
  const float* from = static_cast<const float*>(scales.data) + group * scales.row_stride +
                      column * scales.column_stride;
  if (sizeof(T) == 4 && scales.column_stride == 1 && count == kLanes<T>) return load_as<T>(from);
  Vec<T> result;
  for (int i = 0; i < kLanes<T>; ++i)
    result[i] = static_cast<T>(from[(i < count ? i : count - 1) * scales.column_stride]);
  return result;
}

// Computes to[row][lane] for rows k .. k + depth - 1 of a narrow b and `count` columns, rounded up
// to whole vectors. A row of `to` has kToVectors vectors. k is a multiple of kScaleGroup. The data
// `ahead` elements farther on is prefetched.
template <class T, int kToVectors>
REGARD_NOINLINE void expand_panel(const MatmulProblem& problem, const MatmulTask& task,
                                  std::int64_t k, std::int64_t depth, std::int64_t column,
                                  std::int64_t count, std::int64_t ahead, T* to) {
  constexpr std::ptrdiff_t kToStride = kToVectors * kLanes<T>;
  const Operand& b = problem.b;
  with_stored_element<T>(b.element, [&](auto element) {
    using From = typename decltype(element)::Type;
    if constexpr (sizeof(From) < 4) {
      NarrowColumns<T, From> part{};
      part.row_stride = b.row_stride;
      part.column_stride = b.column_stride;
      part.ahead = ahead;
      for (std::int64_t lane = 0; lane < count; lane += kLanes<T>) {
        part.count = static_cast<int>(count - lane < kLanes<T> ? count - lane : kLanes<T>);
        for (std::int64_t row = 0; row < depth; row += kScaleGroup) {
          part.depth = depth - row < kScaleGroup ? depth - row : kScaleGroup;
          part.first = static_cast<const From*>(task.b) + (k + row) * b.row_stride +
                       (column + lane) * b.column_stride;
          if constexpr (sizeof(From) == 1)
            part.scales =
                scales_of<T>(problem.scales, (k + row) / kScaleGroup, column + lane, part.count);
          T* at = to + row * kToStride + lane;
          if constexpr (sizeof(T) == 4) {
            if (b.row_stride == 1) {
              expand_contiguous<From, kToStride>(part, at);
              continue;
            }
          }
          expand_strided<T, From>(part, at, kToStride);
        }
      }
    }
  });
}

}  // namespace
}  // namespace regard
