// The product that all kernels are built from:
//
//   acc[row][lane] += sum over k of a[row][k] * b[k][lane]
//
// a is broadcast element by element from memory, and b is loaded in vectors. rows x vectors
// accumulators stay in registers for the whole sum. Each element of acc is summed over k in
// increasing order, with one fma per step, whatever the shape of the tile is. The bits of a lane
// therefore do not depend on the number of lanes or rows of a tile.
#pragma once

#include "../simd/vec.hpp"

namespace regard {
namespace {

template <class T, int kRows, int kVectors>
using Accumulators = Vec<T>[kRows][kVectors];

template <class T, int kRows, int kVectors>
REGARD_INLINE void clear(Accumulators<T, kRows, kVectors>& acc) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = Vec<T>{};
}

// tile[row * stride + lane] = acc
template <class T, int kRows, int kVectors>
REGARD_INLINE void store_tile(const Accumulators<T, kRows, kVectors>& acc, T* tile,
                              std::ptrdiff_t stride) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(tile + r * stride + v * kLanes<T>, acc[r][v]);
}

// acc = tile[row * stride + lane]
template <class T, int kRows, int kVectors>
REGARD_INLINE void load_tile(Accumulators<T, kRows, kVectors>& acc, const T* tile,
                             std::ptrdiff_t stride) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = load(tile + r * stride + v * kLanes<T>);
}

// to[row * stride + lane] = from[row * stride + lane] + acc
template <class T, int kRows, int kVectors>
REGARD_INLINE void add_tile(const Accumulators<T, kRows, kVectors>& acc, const T* from, T* to,
                            std::ptrdiff_t stride) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const std::ptrdiff_t at = r * stride + v * kLanes<T>;
      store(to + at, load(from + at) + acc[r][v]);
    }
}

template <class T>
REGARD_INLINE Mask<T> hidden_bits() {
  return as_bits<T>(broadcast(T(-0.0)));
}

// a[row][k] = rows[row][k]: keys, or rows of a left matrix. With kSelect, a term whose a is exactly
// -0.0 (a hidden key, see softmax_state.hpp) is skipped instead of multiplied, so that a NaN or inf
// in b does not propagate.
template <class T, int kRows, int kVectors, bool kSelect = false>
REGARD_INLINE void multiply_rows_at(Accumulators<T, kRows, kVectors>& acc,
                                    const T* const (&rows)[kRows], const T* b,
                                    std::ptrdiff_t b_stride, std::int64_t depth) {
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < depth; ++k) {
    Vec<T> right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + k * b_stride + v * kLanes<T>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> left = broadcast(rows[r][k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> sum = fma(left, right[v], acc[r][v]);
        acc[r][v] = kSelect ? select<T>(as_bits<T>(left) == hidden_bits<T>(), acc[r][v], sum) : sum;
      }
    }
  }
}

// The same for rows that are row_stride apart.
template <class T, int kRows, int kVectors, bool kSelect = false>
REGARD_INLINE void multiply_rows(Accumulators<T, kRows, kVectors>& acc, const T* a,
                                 std::ptrdiff_t row_stride, const T* b, std::ptrdiff_t b_stride,
                                 std::int64_t depth) {
  const T* rows[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) rows[r] = a + r * row_stride;
  multiply_rows_at<T, kRows, kVectors, kSelect>(acc, rows, b, b_stride, depth);
}

// a[row][k] = a[k * step + row]: values, whose rows here are value dimensions. With kSelect, terms
// whose b is exactly -0.0 are skipped. Vectors of the tile outside [kFirst, kEnd) are unchanged.
template <class T, int kRows, int kVectors, bool kSelect, int kFirst = 0, int kEnd = kVectors>
REGARD_INLINE void multiply_columns(Accumulators<T, kRows, kVectors>& acc, const T* a,
                                    std::ptrdiff_t step, const T* b, std::ptrdiff_t b_stride,
                                    std::int64_t depth) {
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < depth; ++k) {
    Vec<T> right[kVectors];
#pragma GCC unroll 8
    for (int v = kFirst; v < kEnd; ++v) right[v] = load(b + k * b_stride + v * kLanes<T>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> left = broadcast(a[k * step + r]);
#pragma GCC unroll 8
      for (int v = kFirst; v < kEnd; ++v) {
        const Vec<T> sum = fma(left, right[v], acc[r][v]);
        acc[r][v] =
            kSelect ? select<T>(as_bits<T>(right[v]) == hidden_bits<T>(), acc[r][v], sum) : sum;
      }
    }
  }
}

}  // namespace
}  // namespace regard
