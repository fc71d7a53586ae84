// Limits of a type's range, and conversion of a float mask's values to the type of scores.
#pragma once

#include "../simd/vec.hpp"

namespace regard {
namespace {

template <class T>
constexpr T kInfinity = static_cast<T>(__builtin_inf());
template <class T>
constexpr T kLargest = sizeof(T) == 4 ? static_cast<T>(__FLT_MAX__) : static_cast<T>(__DBL_MAX__);

// The finite number of type T nearest to a number.
template <class T>
REGARD_INLINE T nearest_finite(double value) {
  const double largest = static_cast<double>(kLargest<T>);
  return static_cast<T>(value > largest ? largest : value < -largest ? -largest : value);
}

// Only -inf itself hides: a finite value beyond T's range becomes the most extreme finite value.
template <class T, class M>
REGARD_INLINE T mask_value(M value) {
  if constexpr (sizeof(M) > sizeof(T)) {
    const M largest = kLargest<T>;
    if (value < -largest && value != -kInfinity<M>) return -kLargest<T>;
    if (value > largest && value != kInfinity<M>) return kLargest<T>;
  }
  return static_cast<T>(value);
}

}  // namespace
}  // namespace regard
