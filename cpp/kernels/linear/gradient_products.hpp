// The products and triangular systems of a chunk's gradients, over all columns of rows.
#pragma once

#include "products.hpp"

namespace regard {
namespace {

enum class Into { replaced, added };
// Which terms a product has: all, or those at and below the diagonal of its left matrix.
enum class Terms { all, lower };

// to[row][lane] (+)= sum over k of left[row][k] * right[k][lane], or left[k][row] if kTransposed.
// Rows are computed up to a whole tile.
template <class Shape, int kVectors, bool kTransposed>
REGARD_NOINLINE void add_product(std::int64_t count,
                                 const Rows<const typename Shape::Element>& left,
                                 const Rows<const typename Shape::Element>& right,
                                 std::int64_t depth, const Rows<typename Shape::Element>& to,
                                 Into into, Terms terms) {
  using T = typename Shape::Element;
  constexpr int kRows = Shape::kRows;
  for (std::int64_t row = 0; row < count; row += kRows) {
    Accumulators<T, kRows, kVectors> acc;
    if (into == Into::added)
      load_tile<T, kRows, kVectors>(acc, to.at(row), to.stride);
    else
      clear<T, kRows, kVectors>(acc);
    if constexpr (kTransposed) {
      const std::int64_t first = terms == Terms::lower ? row : 0;
      multiply_columns<T, kRows, kVectors, false>(acc, left.at(first) + row, left.stride,
                                                  right.at(first), right.stride, depth - first);
    } else {
      const bool ends_before = terms == Terms::lower && row + kRows < depth;
      multiply_rows<T, kRows, kVectors>(acc, left.at(row), left.stride, right.data, right.stride,
                                        ends_before ? row + kRows : depth);
    }
    store_tile<T, kRows, kVectors>(acc, to.at(row), to.stride);
  }
}

template <class Shape, bool kTransposed>
REGARD_NOINLINE void product(std::int64_t count, const Rows<typename Shape::Element>& left,
                             const Rows<typename Shape::Element>& right, std::int64_t depth,
                             std::int64_t lanes, const Rows<typename Shape::Element>& to, Into into,
                             Terms terms = Terms::all) {
  for_panels<Shape>(lanes, [&](std::int64_t lane, int vectors) {
    with_vectors<Shape>(vectors, [&](auto width) {
      add_product<Shape, width.value, kTransposed>(count, {left.data, left.stride},
                                                   {right.data + lane, right.stride}, depth,
                                                   {to.data + lane, to.stride}, into, terms);
    });
  });
}

// Solves x_i = y_i + sum over j < i of f_ij beta_j x_j, from the first row on, or if kTransposed
// x_j = y_j + sum over i > j of f_ij beta_i x_i, from the last row on. Replaces y by x, and writes
// beta x to `scaled`.
template <class Shape, int kVectors, bool kTransposed>
REGARD_NOINLINE void solve_panel(std::int64_t count,
                                 const Rows<const typename Shape::Element>& factors,
                                 const typename Shape::Element* beta,
                                 const Rows<typename Shape::Element>& x,
                                 const Rows<typename Shape::Element>& scaled) {
  using T = typename Shape::Element;
  constexpr int kRows = Shape::kRows;
  for (std::int64_t done = 0; done < count; done += kRows) {
    const std::int64_t row = kTransposed ? (count - 1 - done) / kRows * kRows : done;
    const std::int64_t next = row + kRows;
    Accumulators<T, kRows, kVectors> acc;
    load_tile<T, kRows, kVectors>(acc, x.at(row), x.stride);
    if constexpr (!kTransposed)
      multiply_rows<T, kRows, kVectors>(acc, factors.at(row), factors.stride, scaled.data,
                                        scaled.stride, row);
    else if (next < count)
      multiply_columns<T, kRows, kVectors, false>(acc, factors.at(next) + row, factors.stride,
                                                  scaled.at(next), scaled.stride, count - next);
#pragma GCC unroll 16
    for (int step = 0; step < kRows; ++step) {
      const int j = kTransposed ? kRows - 1 - step : step;
      if (kTransposed && row + j >= count) continue;  // what the array has there is arbitrary
      Vec<T> own[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        own[v] = acc[j][v] * broadcast(beta[row + j]);
        store(scaled.at(row + j) + v * kLanes<T>, own[v]);
      }
#pragma GCC unroll 16
      for (int other = step + 1; other < kRows; ++other) {
        const int r = kTransposed ? kRows - 1 - other : other;
        const Vec<T> factor =
            broadcast(kTransposed ? factors.at(row + j)[row + r] : factors.at(row + r)[row + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(factor, own[v], acc[r][v]);
      }
    }
    store_tile<T, kRows, kVectors>(acc, x.at(row), x.stride);
  }
}

template <class Shape, bool kTransposed>
REGARD_NOINLINE void solve(std::int64_t count, const Rows<typename Shape::Element>& factors,
                           const typename Shape::Element* beta, std::int64_t lanes,
                           const Rows<typename Shape::Element>& x,
                           const Rows<typename Shape::Element>& scaled) {
  for_panels<Shape>(lanes, [&](std::int64_t lane, int vectors) {
    with_vectors<Shape>(vectors, [&](auto width) {
      solve_panel<Shape, width.value, kTransposed>(count, {factors.data, factors.stride}, beta,
                                                   {x.data + lane, x.stride},
                                                   {scaled.data + lane, scaled.stride});
    });
  });
}

}  // namespace
}  // namespace regard
