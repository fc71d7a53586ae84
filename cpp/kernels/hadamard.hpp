// A rotation of queries and keys, which does not change their products. A dimension that is far
// larger than the others would leave the others few steps of int8, and the rotation spreads it over
// all dimensions (Ashkboos et al. 2024, QuaRot). A Hadamard matrix needs only sums and differences.
//
// H H is group times the identity, so the product of two rotated rows is group times their original
// product.
#pragma once

#include <utility>

#include "elements.hpp"

namespace regard {
namespace {

constexpr float kInt8Steps = 127;  // from 0 to the largest magnitude of an int8 row

// Dimensions are rotated in groups of this size: the largest power of two that divides head_dim.
constexpr std::int64_t rotated_together(std::int64_t head_dim) { return head_dim & -head_dim; }

// The factors of a cache's keys and queries before they are rotated. int8 has a scale for each row,
// so keys take the whole factor. Numbers with few exponents, such as float8 and the scales of q4_1,
// should keep about their size, so keys and queries each take half of the powers of two.
REGARD_INLINE float key_share(Element element, std::int64_t head_dim) {
  const std::int64_t together = rotated_together(head_dim);
  if (element == Element::int8) return 1.0f / static_cast<float>(together);
  float share = 1.0f;
  for (std::int64_t four = 4; four <= together; four *= 4) share /= 2.0f;
  return share;
}
REGARD_INLINE float query_share(Element element, std::int64_t head_dim) {
  return 1.0f / (key_share(element, head_dim) * static_cast<float>(rotated_together(head_dim)));
}

// Sums and differences of kCount numbers: of neighbors, then of pairs, and so on.
template <int kCount, class V>
REGARD_INLINE void rotate_numbers(V (&x)[kCount]) {
#pragma GCC unroll 3
  for (int half = 1; half < kCount; half *= 2)
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      if (i & half) continue;
      const V a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
}

// The steps from `half` to half * kCount of a group, for numbers that are `half` numbers apart, at
// `stride` elements per number. `width` numbers are processed at a time.
template <int kCount, class T>
REGARD_INLINE void rotate_pass(T* x, std::int64_t stride, std::int64_t group, std::int64_t half,
                               std::int64_t width) {
  for (std::int64_t first = 0; first < group; first += kCount * half)
    for (std::int64_t d = first; d < first + half; d += width) {
      Vec<T> numbers[kCount];
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) numbers[i] = load<T>(x + (d + i * half) * stride);
      rotate_numbers(numbers);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) store(x + (d + i * half) * stride, numbers[i]);
    }
}

// The steps of a group from `half` on, three steps per pass through memory.
template <class T>
REGARD_INLINE void rotate_group(T* x, std::int64_t stride, std::int64_t group, std::int64_t half,
                                std::int64_t width) {
  while (half < group) {
    const std::int64_t left = group / half;
    if (left >= 8)
      rotate_pass<8>(x, stride, group, half, width);
    else if (left == 4)
      rotate_pass<4>(x, stride, group, half, width);
    else
      rotate_pass<2>(x, stride, group, half, width);
    half *= left >= 8 ? 8 : left;
  }
}

// x = H x in each group of rows of [head_dim][stride], for a vector of lanes.
template <class T>
REGARD_NOINLINE void rotate_lanes(T* x, std::int64_t stride, std::int64_t head_dim) {
  const std::int64_t group = rotated_together(head_dim);
  for (std::int64_t first = 0; first < head_dim; first += group)
    rotate_group(x + first * stride, stride, group, 1, 1);
}

// The steps within a vector, for lanes that are kHalf apart: a + b in the lower lane, a - b in the
// upper lane.
template <int kHalf, class T, std::size_t... kLane>
REGARD_INLINE Vec<T> rotate_vector(Vec<T> v, std::index_sequence<kLane...> lanes) {
  if constexpr (kHalf == kLanes<T>) {
    return v;
  } else {
    const Vec<T> other = __builtin_shufflevector(v, v, static_cast<int>(kLane ^ kHalf)...);
    constexpr Vec<T> kSign{((kLane & kHalf) ? T(-1) : T(1))...};
    return rotate_vector<2 * kHalf, T>(other + v * kSign, lanes);
  }
}

// The same for one row, with identical bits.
template <class T>
REGARD_NOINLINE void rotate_row(T* x, std::int64_t head_dim) {
  constexpr std::int64_t kWidth = kLanes<T>;
  const std::int64_t group = rotated_together(head_dim);
  if (group >= kWidth) {
    for (std::int64_t d = 0; d < head_dim; d += kWidth)
      store(x + d,
            rotate_vector<1, T>(load<T>(x + d),
                                std::make_index_sequence<static_cast<std::size_t>(kWidth)>()));
    for (std::int64_t first = 0; first < head_dim; first += group)
      rotate_group(x + first, 1, group, kWidth, kWidth);
    return;
  }
  for (std::int64_t half = 1; half < group; half *= 2)
    for (std::int64_t d = 0; d < head_dim; ++d) {
      if (d & half) continue;
      const T a = x[d], b = x[d + half];
      x[d] = a + b;
      x[d + half] = a - b;
    }
}

}  // namespace
}  // namespace regard
