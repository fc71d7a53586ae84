// Products of the rows of a chunk with a panel of columns.
#pragma once

#include "../micro_kernel.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

// An array of rows in a workspace.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  REGARD_MEMBER T* at(std::int64_t row) const { return data + row * stride; }
};

template <class T, int kRows, int kVectors>
REGARD_INLINE void multiply_last_rows(std::int64_t count, const Rows<const T>& rows,
                                      const Rows<const T>& panel, std::int64_t depth,
                                      const Rows<T>& to) {
  if constexpr (kRows > 1)
    if (count <= kRows / 2)
      return multiply_last_rows<T, kRows / 2, kVectors>(count, rows, panel, depth, to);
  Accumulators<T, kRows, kVectors> acc;
  clear<T, kRows, kVectors>(acc);
  multiply_rows<T, kRows, kVectors>(acc, rows.data, rows.stride, panel.data, panel.stride, depth);
  store_tile<T, kRows, kVectors>(acc, to.data, to.stride);
}

// to[row][lane] = sum over k of rows[row][k] * panel[k][lane]. Reads and writes more rows: up to a
// power of 2 of the last tile.
template <class Shape, int kVectors>
REGARD_NOINLINE void multiply_panel(std::int64_t count,
                                    const Rows<const typename Shape::Element>& rows,
                                    const Rows<const typename Shape::Element>& panel,
                                    std::int64_t depth, const Rows<typename Shape::Element>& to) {
  using T = typename Shape::Element;
  for (std::int64_t row = 0; row < count; row += Shape::kRows)
    multiply_last_rows<T, Shape::kRows, kVectors>(count - row, {rows.at(row), rows.stride}, panel,
                                                  depth, {to.at(row), to.stride});
}

// scores[row][lane] = rows[row] . keys[lane] for all lanes up to row.
template <class Shape>
REGARD_NOINLINE void multiply_triangle(std::int64_t count,
                                       const Rows<const typename Shape::Element>& rows,
                                       const Rows<const typename Shape::Element>& transposed,
                                       std::int64_t depth,
                                       const Rows<typename Shape::Element>& scores) {
  for_panels<Shape>(count, [&](std::int64_t lane, int vectors) {
    const std::int64_t first = lane / Shape::kRows * Shape::kRows;
    with_vectors<Shape>(vectors, [&](auto width) {
      multiply_panel<Shape, width.value>(count - first, {rows.at(first), rows.stride},
                                         {transposed.data + lane, transposed.stride}, depth,
                                         {scores.at(first) + lane, scores.stride});
    });
  });
}

}  // namespace
}  // namespace regard
