// Rows of pairs (../../simd/bfloat16_pairs.hpp) in 32-bit words, and the products of
// ../micro_kernel.hpp with these rows.
#pragma once

#include "../../simd/bfloat16_pairs.hpp"
#include "../micro_kernel.hpp"
#include "../strips/products.hpp"

namespace regard {
namespace {

constexpr std::int64_t pairs_in(std::int64_t numbers) { return (numbers + 1) / 2; }

REGARD_INLINE Vec<float> broadcast_pair(const void* from) {
  std::int32_t pair;
  __builtin_memcpy(&pair, from, sizeof pair);
  return as_value<float>(Mask<float>{} + pair);
}

// ---- pairs -----------------------------------------------------------------------------------

// Each of these functions may work in place.

// to[i] = (from[2 i], from[2 i + 1]), with 0 after the last number.
REGARD_INLINE void pair_neighbors(const float* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + kLanes<float> <= count; i += kLanes<float>)
    store_as<float>(reinterpret_cast<BFloat16*>(to) + i, load(from + i));
  for (; i < count; i += 2) {
    BFloat16 low, high{};
    narrow(from[i], low);
    if (i + 1 < count) narrow(from[i + 1], high);
    const std::uint32_t pair = low.bits | static_cast<std::uint32_t>(high.bits) << 16;
    __builtin_memcpy(to + i / 2, &pair, sizeof pair);
  }
}

// to[row / 2][column] = (from[row][column], from[row + 1][column]), with 0 after the last row.
REGARD_INLINE void pair_rows(const float* from, std::ptrdiff_t stride, std::int64_t rows,
                             std::int64_t columns, float* to, std::ptrdiff_t to_stride) {
  for (std::int64_t row = 0; row < rows; row += 2, from += 2 * stride, to += to_stride) {
    const bool has_high = row + 1 < rows;
    std::int64_t i = 0;
    for (; i + kLanes<float> <= columns; i += kLanes<float>)
      store(to + i, pairs_of(load(from + i), has_high ? load(from + stride + i) : Vec<float>{}));
    for (; i < columns; ++i)
      to[i] = pairs_of(broadcast(from[i]), broadcast(has_high ? from[stride + i] : 0.0f))[0];
  }
}

// Like rows_are_finite, for numbers that have been rounded.
REGARD_NOINLINE bool pairs_are_finite(const float* from, std::ptrdiff_t stride, std::int64_t rows,
                                      std::int64_t columns) {
  Mask<float> bits{};
  const auto look = [&](Vec<float> pairs) {
    const Vec<float> low = low_of_pairs(pairs), high = high_of_pairs(pairs);
    bits |= as_bits<float>(low - low) | as_bits<float>(high - high);
  };
  for (std::int64_t row = 0; row < rows; ++row, from += stride) {
    std::int64_t i = 0;
    for (; i + kLanes<float> <= columns; i += kLanes<float>) look(load(from + i));
    for (; i < columns; ++i) look(broadcast_pair(from + i));
  }
  return !any<float>(bits != 0);
}

// ---- products --------------------------------------------------------------------------------

// A hidden number in a pair is -0.0.
REGARD_INLINE Mask<float> is_low_hidden(Vec<float> pairs) {
  return (as_bits<float>(pairs) & 0xffff) == 0x8000;
}
REGARD_INLINE Mask<float> is_high_hidden(Vec<float> pairs) {
  return (as_bits<float>(pairs) >> 16 & 0xffff) == 0x8000;
}

// Dot::add. With kSelect, products of hidden numbers of `a` are skipped, so that a NaN or inf in
// `b` does not propagate. The numbers of a pair are then multiplied separately, in the same order.
template <class Dot, bool kSelect>
REGARD_INLINE Vec<float> add_pair(Vec<float> sum, Vec<float> a, Vec<float> b) {
  if constexpr (!kSelect) return Dot::add(sum, a, b);
  const Vec<float> high = select<float>(is_high_hidden(a), sum, Dot::add(sum, a, high_of_pairs(b)));
  const Vec<float> low_of_b = as_value<float>(as_bits<float>(b) & 0xffff);
  return select<float>(is_low_hidden(a), high, Dot::add(high, a, low_of_b));
}

// Like multiply_rows: acc[row][lane] += the sum of a[row][k] b[k][lane] over k, two at a time. The
// rows of `a` may belong to a bfloat16 array, which is not always aligned to words.
template <class Dot, int kRows, int kVectors, bool kSelect = false>
REGARD_INLINE void multiply_rows_of_pairs(Accumulators<float, kRows, kVectors>& acc, const float* a,
                                          std::ptrdiff_t row_stride, const float* b,
                                          std::ptrdiff_t b_stride, std::int64_t pairs) {
  const float* rows[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) rows[r] = a + r * row_stride;
  // Unrolling to two steps would spill sums to the stack.
#pragma GCC unroll 1
  for (std::int64_t i = 0; i < pairs; ++i, b += b_stride) {
    Vec<float> right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes<float>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec<float> left = broadcast_pair(rows[r] + i);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = kSelect ? add_pair<Dot, true>(acc[r][v], left, right[v])
                            : Dot::add(acc[r][v], right[v], left);
    }
  }
}

// The product from which score_tile and similar functions compute scores or gradients of weights.
template <class Shape, class Dot>
struct PairProduct {
  const float* rows;
  std::ptrdiff_t row_stride;
  const float* lanes;
  std::int64_t pairs;

  template <int kRows, int kVectors>
  REGARD_MEMBER void multiply(Accumulators<float, kRows, kVectors>& acc, int lane) const {
    clear<float, kRows, kVectors>(acc);
    multiply_rows_of_pairs<Dot, kRows, kVectors>(acc, rows, row_stride, lanes + lane,
                                                 Shape::kStripLanes, pairs);
  }
};

// Makes add_columns multiply keys two at a time. A term's block is then [block keys /
// 2][kStripLanes], and its rows are rows of pairs of keys.
template <class Dot>
struct MultiplyPairsOfKeys {
  template <class Shape, bool kSelect, int kBegin, int kEnd>
  REGARD_INLINE void add(Accumulators<float, Shape::kRows, Shape::kVectors>& acc,
                         const KeyTerm<float>& term, std::int64_t column, const KeyRun& run) {
    for (int k = run.begin / 2; k < (run.end + 1) / 2; ++k) {
      const float* const rows = term.rows + k * term.row_stride + column;
      Vec<float> lanes[kEnd];
#pragma GCC unroll 8
      for (int v = kBegin; v < kEnd; ++v)
        lanes[v] = load(term.block + k * Shape::kStripLanes + v * kLanes<float>);
#pragma GCC unroll 16
      for (int r = 0; r < Shape::kRows; ++r) {
        const Vec<float> row = broadcast_pair(rows + r);
#pragma GCC unroll 8
        for (int v = kBegin; v < kEnd; ++v)
          acc[r][v] = add_pair<Dot, kSelect>(acc[r][v], lanes[v], row);
      }
    }
  }
};

}  // namespace
}  // namespace regard
