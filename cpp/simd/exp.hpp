// exp(x) = e^x, lane by lane, for x <= 44. Softmax never needs more than 2^kThreshold, or twice
// that if the threshold is rounded.
//
// e^x = 2^n p(f), with x log2(e) = n + f and p the minimax polynomial of 2^f in relative error,
// found by the Remez exchange in 50 digits. The relative error of p before rounding is 1.9e-9 for
// float (degree 6) and 3.1e-18 for double (degree 11). f is one fma, so it is as accurate as
// log2(e), whose rounding moves the result by 1.4e-8 |x| of itself for float. Horner's scheme adds
// about 1 ulp (cpp/tests/test_kernels.cpp tests this). e^0 is exactly 1, so a row that sees only
// one key returns that key's value to the last bit.
//
// Exceptional values: exp(-inf) is 0 and exp(NaN) is NaN. A result below the smallest normal number
// is 0.
#pragma once

#include "vec.hpp"

namespace regard {
namespace {

constexpr double kLn2 = 0.69314718055994530942;

// [-0.5, 0.5], highest power first.
constexpr float kExp2Float[] = {1.53458121587e-4f, 1.33999312095e-3f, 9.61848895652e-3f,
                                5.55032877700e-2f, 2.40226468906e-1f, 6.93147205737e-1f,
                                1.0f};
constexpr double kExp2Double[] = {
    4.43528094461033616e-10, 7.07410562624565937e-9, 1.01781980333285277e-7,
    1.3215433089594629e-6,   1.52527334899608046e-5, 1.5403530462514613e-4,
    1.33335581467899503e-3,  9.61812910758833508e-3, 5.55041086648199215e-2,
    2.40226506959101562e-1,  6.9314718055994533e-1,  1.0};
template <class T, int kTerms>
REGARD_INLINE Vec<T> polynomial(Vec<T> x, const T (&coefficients)[kTerms]) {
  Vec<T> sum = broadcast<T>(coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < kTerms; ++i) sum = fma(sum, x, broadcast<T>(coefficients[i]));
  return sum;
}

template <class T>
struct Exp2Bits;
template <>
struct Exp2Bits<float> {
  // 1.5 * 2^23 rounds the sum to an integer and leaves it in the low bits, with the bias added.
  static constexpr float kRound = 12582912.0f + 127.0f;
  static constexpr int kMantissa = 23;
  static constexpr float kLowest = -87.33654f;  // the logarithm of the smallest normal number
  static constexpr int kTerms = 7;
  static constexpr const float (&kCoefficients)[kTerms] = kExp2Float;
};
template <>
struct Exp2Bits<double> {
  static constexpr double kRound = 6755399441055744.0 + 1023.0;  // 1.5 * 2^52 + bias
  static constexpr int kMantissa = 52;
  static constexpr double kLowest = -708.39641853226408;
  static constexpr int kTerms = 12;
  static constexpr const double (&kCoefficients)[kTerms] = kExp2Double;
};

constexpr double kLog2E = 1.4426950408889634074;

// Returns 0 if x < lowest. lowest is at least kLowest.
#if defined(REGARD_X86_V4)

REGARD_INLINE Vec<float> exp(Vec<float> x, float lowest = Exp2Bits<float>::kLowest) {
  const Vec<float> scale = broadcast(static_cast<float>(kLog2E)), round = broadcast(12582912.0f);
  const Vec<float> integer = fma(x, scale, round) - round;
  const Vec<float> power = polynomial<float>(fma(x, scale, -integer), kExp2Float);
  const __mmask16 counts = _mm512_cmp_ps_mask(x, broadcast(lowest), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(counts, power, integer);
}

REGARD_INLINE Vec<double> exp(Vec<double> x, double lowest = Exp2Bits<double>::kLowest) {
  const Vec<double> scale = broadcast(kLog2E), round = broadcast(6755399441055744.0);
  const Vec<double> integer = fma(x, scale, round) - round;
  const Vec<double> power = polynomial<double>(fma(x, scale, -integer), kExp2Double);
  const __mmask8 counts = _mm512_cmp_pd_mask(x, broadcast(lowest), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_pd(counts, power, integer);
}

#else

template <class T>
REGARD_INLINE Vec<T> exp_by_bits(Vec<T> x, T lowest) {
  using Bits = Exp2Bits<T>;
  const Vec<T> scale = broadcast(static_cast<T>(kLog2E)), round = broadcast<T>(Bits::kRound);
  const Mask<T> vanishes = x < broadcast(lowest);  // false for NaN
  const Vec<T> clamped = select<T>(vanishes, Vec<T>{}, x);
  const Vec<T> shifted = fma(clamped, scale, round);
  const Vec<T> fraction = fma(clamped, scale, round - shifted);
  const Vec<T> power = as_value<T>(as_bits<T>(shifted) << Bits::kMantissa);
  // A product instead of an addition to the exponent's bits, so that NaN stays NaN.
  const Vec<T> result = polynomial<T>(fraction, Bits::kCoefficients) * power;
  return select<T>(vanishes, Vec<T>{}, result);
}

REGARD_INLINE Vec<float> exp(Vec<float> x, float lowest = Exp2Bits<float>::kLowest) {
  return exp_by_bits<float>(x, lowest);
}
REGARD_INLINE Vec<double> exp(Vec<double> x, double lowest = Exp2Bits<double>::kLowest) {
  return exp_by_bits<double>(x, lowest);
}

#endif

// ---- tanh ------------------------------------------------------------------------------------

// tanh, lane by lane, from the polynomial of exp.
//
//   tanh(x) = (e - 1) / (e + 1) with e = exp(2 x) = 2^y, y = 2 log2(e) x
//
// To avoid cancellation, e - 1 is computed from y = n + f, |f| <= 1/2, as 2^n (2^f - 1) + (2^n -
// 1), where 2^f - 1 = f p(f) is accurate in relative terms. A small tanh therefore keeps its last
// bits. The error is about 3 ulp over the whole range (cpp/tests/test_kernels.cpp tests this).

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
