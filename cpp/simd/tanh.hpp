// tanh, lane by lane, from the polynomial of exp.
//
//   tanh(x) = (e - 1) / (e + 1) with e = exp(2 x) = 2^y, y = 2 log2(e) x
//
// To avoid cancellation, e - 1 is computed from y = n + f, |f| <= 1/2, as 2^n (2^f - 1) + (2^n -
// 1), where 2^f - 1 = f p(f) is accurate in relative terms. A small tanh therefore keeps its last
// bits. The error is about 3 ulp over the whole range (cpp/tests/test_kernels.cpp tests this).
#pragma once

#include "exp.hpp"

namespace regard {
namespace {

// From this y on, tanh rounds to 1: 2 / (2^y + 1) is below half an ulp of 1.
template <class T>
constexpr T kTanhIsOne = sizeof(T) == 4 ? T(26) : T(55);

// tanh(y / (2 log2(e))); NaN stays NaN.
template <class T>
REGARD_INLINE Vec<T> tanh_of_log2_units(Vec<T> y) {
  using Bits = Exp2Bits<T>;
  const Vec<T> limit = broadcast(kTanhIsOne<T>);
  const Vec<T> low = select<T>(y < -limit, -limit, y);
  const Vec<T> x = select<T>(low > limit, limit, low);
  const Vec<T> shifted = x + broadcast<T>(Bits::kRound);
  const Vec<T> f = x - (shifted - broadcast<T>(Bits::kRound));
  const Vec<T> power = as_value<T>(as_bits<T>(shifted) << Bits::kMantissa);
  Vec<T> p = broadcast<T>(Bits::kCoefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i + 1 < Bits::kTerms; ++i)
    p = fma(p, f, broadcast<T>(Bits::kCoefficients[i]));
  const Vec<T> one = broadcast(T(1));
  const Vec<T> less_one = fma(power, p * f, power - one);  // 2^x - 1
  return less_one / (less_one + (one + one));
}

}  // namespace
}  // namespace regard
