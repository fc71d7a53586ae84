// A rotation of queries and keys, which changes no product of the two, and spreads a dimension that is far
// larger than the others, which would take the steps of int8 from them, over all (Ashkboos et al. 2024,
// QuaRot). This one is a Hadamard matrix: signs alone, sums and differences, the same whatever the numbers.
//
// H H is group times the identity: a product of two rotated is group times what it was.
#pragma once

#include "elements.hpp"

namespace regard {
namespace {

// Dimensions are rotated in groups of so many: the largest power of two that divides head_dim.
constexpr std::int64_t rotated_together(std::int64_t head_dim) { return head_dim & -head_dim; }

// Calls body with the two dimensions of each sum and difference, in order.
template <class Body>
REGARD_INLINE void for_rotated_pairs(std::int64_t head_dim, Body body) {
  const std::int64_t group = rotated_together(head_dim);
  for (std::int64_t half = 1; half < group; half *= 2)
    for (std::int64_t first = 0; first < head_dim; first += 2 * half)
      for (std::int64_t d = first; d < first + half; ++d) body(d, d + half);
}

// x = H x in each group of rows of [head_dim][stride], for a vector of lanes.
template <class T>
REGARD_NOINLINE void rotate_lanes(T* x, std::int64_t stride, std::int64_t head_dim) {
  for_rotated_pairs(head_dim, [&](std::int64_t upper, std::int64_t lower) {
    const Vec<T> a = load<T>(x + upper * stride), b = load<T>(x + lower * stride);
    store(x + upper * stride, a + b);
    store(x + lower * stride, a - b);
  });
}

// The same of one row: the same bits.
template <class T>
REGARD_NOINLINE void rotate_row(T* x, std::int64_t head_dim) {
  for_rotated_pairs(head_dim, [&](std::int64_t upper, std::int64_t lower) {
    const T a = x[upper], b = x[lower];
    x[upper] = a + b;
    x[lower] = a - b;
  });
}

}  // namespace
}  // namespace regard
