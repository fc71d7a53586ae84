// The part of a chunk that differs between columns of the values, with columns in lanes. For each
// panel of columns, with the state S at the start of the chunk:
//
//   products = rows S                                               rows: decayed keys and queries
//   U_i = beta_i (V_i - products_i) - sum over j < i of f_ij U_j    by forward substitution
//   O_i = scale (products_i + sum over j <= i of w_ij U_j)
//   S = decay S + ends^T U                                          ends: keys, decayed to the end
//
// Each sum is in the order of j, one fma per term, and no term of a later token is ever multiplied:
// the bits of a token do not depend on the tokens after it.
#pragma once

#include "products.hpp"

namespace regard {
namespace {

template <class Shape, int kVectors>
struct LinearPanel {
  using T = typename Shape::Element;
  using Workspace = LinearWorkspace<Shape>;
  static constexpr int kRows = Shape::kRows;
  static constexpr std::int64_t kWidth = kVectors * kLanes<T>;
  static constexpr std::int64_t kScores = Workspace::kScores;

  // Replaces values by updates.
  REGARD_NOINLINE void substitute(std::int64_t count, const T* products, const T* factors,
                                  const T* beta, T* updates) {
    for (std::int64_t row = 0; row < count; row += kRows)
      substitute_rows<kRows>(row, count - row, products, factors, beta, updates);
  }

  // Replaces products of queries by outputs, and changes the rows of the tile after them.
  REGARD_NOINLINE void finish_outputs(std::int64_t count, T scale, const T* weights,
                                      const T* updates, T* products) {
    for (std::int64_t row = 0; row < count; row += kRows)
      finish_rows<kRows>(row, count - row, scale, weights, updates, products);
  }

  // Rows of the state are columns of the keys.
  REGARD_NOINLINE void update_state(std::int64_t count, std::int64_t dim, const Rows<const T>& ends,
                                    const T* decay, const T* updates, const Rows<const T>& from,
                                    const Rows<T>& to) {
    std::int64_t row = dim;
    for (; row % kRows != 0; --row) update_rows<1>(row - 1, count, ends, decay, updates, from, to);
    for (; row > 0; row -= kRows)
      update_rows<kRows>(row - kRows, count, ends, decay, updates, from, to);
  }

 private:
  // A single row, as in a decode, is a tile.
  template <int kCount>
  REGARD_INLINE void substitute_rows(std::int64_t row, std::int64_t left, const T* products,
                                     const T* factors, const T* beta, T* updates) {
    if constexpr (kCount > 1 && Shape::kTrims)
      if (left == 1) return substitute_rows<1>(row, left, products, factors, beta, updates);
    Accumulators<T, kCount, kVectors> acc;
    T* const own = updates + row * kWidth;
#pragma GCC unroll 16
    for (int r = 0; r < kCount; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t at = r * kWidth + v * kLanes<T>;
        acc[r][v] =
            broadcast(beta[row + r]) * (load(own + at) - load(products + row * kWidth + at));
      }
    const T* const of_rows = factors + row * kScores;
    multiply_rows<T, kCount, kVectors>(acc, of_rows, kScores, updates, kWidth, row);
#pragma GCC unroll 16
    for (int j = 0; j + 1 < kCount; ++j)
#pragma GCC unroll 16
      for (int r = j + 1; r < kCount; ++r) {
        const Vec<T> factor = broadcast(of_rows[r * kScores + row + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(factor, acc[j][v], acc[r][v]);
      }
    store_tile<T, kCount, kVectors>(acc, own, kWidth);
  }

  template <int kCount>
  REGARD_INLINE void finish_rows(std::int64_t row, std::int64_t left, T scale, const T* weights,
                                 const T* updates, T* products) {
    if constexpr (kCount > 1 && Shape::kTrims)
      if (left == 1) return finish_rows<1>(row, left, scale, weights, updates, products);
    Accumulators<T, kCount, kVectors> acc;
    T* const own = products + row * kWidth;
    load_tile<T, kCount, kVectors>(acc, own, kWidth);
    const T* const of_rows = weights + row * kScores;
    multiply_rows<T, kCount, kVectors>(acc, of_rows, kScores, updates, kWidth, row);
#pragma GCC unroll 16
    for (int j = 0; j < kCount; ++j) {
      Vec<T> update[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        update[v] = load(updates + (row + j) * kWidth + v * kLanes<T>);
#pragma GCC unroll 16
      for (int r = j; r < kCount; ++r) {
        const Vec<T> weight = broadcast(of_rows[r * kScores + row + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(weight, update[v], acc[r][v]);
      }
    }
    const Vec<T> factor = broadcast(scale);
#pragma GCC unroll 16
    for (int r = 0; r < kCount; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = acc[r][v] * factor;
    store_tile<T, kCount, kVectors>(acc, own, kWidth);
  }

  template <int kCount>
  REGARD_INLINE void update_rows(std::int64_t row, std::int64_t count, const Rows<const T>& ends,
                                 const T* decay, const T* updates, const Rows<const T>& from,
                                 const Rows<T>& to) {
    Accumulators<T, kCount, kVectors> acc;
    load_tile<T, kCount, kVectors>(acc, from.at(row), from.stride);
#pragma GCC unroll 16
    for (int r = 0; r < kCount; ++r) {
      const Vec<T> factor = broadcast(decay[row + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = acc[r][v] * factor;
    }
    multiply_columns<T, kCount, kVectors, false>(acc, ends.data + row, ends.stride, updates, kWidth,
                                                 count);
    store_tile<T, kCount, kVectors>(acc, to.at(row), to.stride);
  }
};

}  // namespace
}  // namespace regard
