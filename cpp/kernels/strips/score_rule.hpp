// Defines how a score is computed and converted to a weight, with one function per step. This is
// the only definition. Kernels differ in the contents of their lanes (queries, or keys in a decode)
// and call these functions on their vectors.
//
//   score   = scale (query . key)             no input is rounded before its product
//   score   = score + scale (query . mean)    with the mean that keys are stored without
//   score   = softcap tanh(score / softcap)   capped, if there is a softcap
//   score   = function(score)                 function_of_scores, if the caller has one
//   added   = bias                            within_limits
//             - slope |position - key|        with_alibi
//             + distance_bias[key - position] with_distance_bias
//             or -inf                         if a mask or the position hides the key
//   score   = score + added, or -inf          with_added
//   weight  = e^(score - reference), or -0.0  weight_of; see softmax_state.hpp for the sum,
//           = e^(score - lse)                 exponent_below_lse, if the lse is known
//   weight  = weight times the value's scale  scaled_weight, of values in int8, after the sum
//   weight  = weight times 0 or 1 / (1 - p)   dropped_weight, likewise; see dropout.hpp
//
// Up to the exponent, these are the operations of the same formula in NumPy, so a score has the
// same error.
#pragma once

#include "softmax_state.hpp"

namespace regard {
namespace {

// Weights below e^kNegligible count as 0. They do not change a sum of about 1, but their products
// with values would be subnormal, and each subnormal product costs a microcode assist of a hundred
// cycles (ALiBi over 4096 keys took 6.8 times as long; docs/lab-notes.md).
template <class T>
constexpr T kNegligible = sizeof(T) == 4 ? T(-69) : T(-665);

// The kind of bias that is added to scores: nothing, finite numbers (or NaN), or also -inf, which
// hides. -inf takes precedence over a score of any value.
enum class Bias { none, adds, hides };

// The cap in the range that arithmetic in T can handle, 0 for none. A cap beyond the largest scores
// does not change any score. With a cap below kLeast, all weights are equal to the last bit,
// whatever the scores are. `head` is counted from the group's first head, here and below.
template <class T>
REGARD_INLINE double softcap_of(const AttentionProblem& problem, const AttentionTask& task,
                                std::int64_t head) {
  constexpr double kMost = sizeof(T) == 4 ? 1e37 : 1e307, kLeast = sizeof(T) == 4 ? 1e-20 : 1e-200;
  const double softcap =
      task.softcaps ? task.softcaps[head * problem.softcaps.head_stride] : problem.softcap;
  if (softcap > kMost) return 0;
  return softcap != 0 && softcap < kLeast ? kLeast : softcap;
}

REGARD_INLINE bool has_softcap(const AttentionProblem& problem) {
  return problem.softcap != 0 || problem.softcaps.data;
}

REGARD_INLINE double scale_of(const AttentionProblem& problem, const AttentionTask& task,
                              std::int64_t head) {
  return task.scales ? task.scales[head * problem.scales.head_stride] : problem.scale;
}

// A softcap of 0 changes nothing.
template <class T>
REGARD_INLINE Vec<T> capped(Vec<T> score, Vec<T> softcap) {
  const Vec<T> twice = broadcast(static_cast<T>(2 * kLog2E)) / softcap;
  return select<T>(softcap == Vec<T>{}, score, softcap * tanh_of_log2_units<T>(score * twice));
}

// The most that is added to a score, so that the sum of a score and some terms remains finite.
template <class T>
constexpr T kMostAdded = kLargest<T> / 2;

// Limits a finite term to kMostAdded.
template <class T>
REGARD_INLINE Vec<T> within_limits(Vec<T> value) {
  const Vec<T> most = broadcast(kMostAdded<T>), largest = broadcast(kLargest<T>);
  const Vec<T> above_lowest = select<T>((value < -most) & (value >= -largest), -most, value);
  return select<T>((value > most) & (value <= largest), most, above_lowest);
}

template <class T>
REGARD_INLINE T slope_of(const AttentionProblem& problem, const AttentionTask& task,
                         std::int64_t head) {
  return nearest_finite<T>(task.alibi_slopes[head * problem.alibi_slopes.head_stride]);
}

// added - slope |distance - within|, kept finite if it does not hide. `distance` is from the query
// to a tile's first key, and `within` is from there to the key. Exact below 2^24 (float).
template <class T>
REGARD_INLINE Vec<T> with_alibi(Vec<T> added, Vec<T> slope, Vec<T> distance, Vec<T> within) {
  const Vec<T> away = distance - within;
  const Vec<T> sum = added - slope * maximum<T>(away, -away);
  const Vec<T> finite = maximum<T>(broadcast(-kMostAdded<T>), sum);  // NaN stays NaN
  return select<T>(added == broadcast(-kInfinity<T>), added, finite);
}

// added + distance_bias, likewise; both may be -inf, which hides.
template <class T>
REGARD_INLINE Vec<T> with_distance_bias(Vec<T> added, Vec<T> distance_bias) {
  const Vec<T> hidden = broadcast(-kInfinity<T>);
  const Vec<T> finite = maximum<T>(broadcast(-kMostAdded<T>), added + distance_bias);
  return select<T>((added == hidden) | (distance_bias == hidden), hidden, finite);
}

// Whether a query does not see the key at `here` by its position. `first` is 0 for sink tokens. V
// is a number or a vector of numbers.
template <class V>
REGARD_INLINE auto is_hidden(V here, V first, V end) {
  return (here < first) | (here >= end);
}

template <class T, Bias kBias>
REGARD_INLINE Vec<T> with_added(Vec<T> score, Vec<T> added) {
  const Vec<T> sum = score + added, hidden = broadcast(-kInfinity<T>);
  return kBias == Bias::hides ? select<T>(added == hidden, hidden, sum) : sum;
}

// Replaces a weight by `instead` if `added` hides.
template <class T>
REGARD_INLINE Vec<T> unless_hidden(Vec<T> weight, Vec<T> added, Vec<T> instead) {
  return select<T>(added == broadcast(-kInfinity<T>), instead, weight);
}

// e^exponent, or 0 if the exponent is below `lowest`, or -0.0 if the term that was added to the
// score, added[at], hides.
template <class T, Bias kBias>
REGARD_INLINE Vec<T> weight_of_exponent(Vec<T> exponent, const T* added, std::ptrdiff_t at,
                                        T lowest = kNegligible<T>) {
  const Vec<T> weight = exp(exponent, lowest);
  if constexpr (kBias == Bias::hides)
    return unless_hidden<T>(weight, load(added + at), broadcast(T(-0.0)));
  else
    return weight;
}

template <class T, Bias kBias>
REGARD_INLINE Vec<T> weight_of(Vec<T> score, Vec<T> reference, const T* added, std::ptrdiff_t at,
                               T lowest = kNegligible<T>) {
  return weight_of_exponent<T, kBias>(score - reference, added, at, lowest);
}

// The logarithm of a weight e^(score - lse), at most 0: lse is rounded, so for scores as large as
// 1e30, the difference of a score and its lse may exceed any exponent.
template <class T>
REGARD_INLINE Vec<T> exponent_below_lse(Vec<T> score, const RowLse<T>& lse, int lane) {
  const Vec<T> exponent = score - load<T>(lse.high + lane) - load<T>(lse.low + lane);
  return exponent > Vec<T>{} ? Vec<T>{} : exponent;  // NaN stays NaN
}

// The derivative of a capped score with respect to the score before: 1 - (score / softcap)^2.
template <class T>
REGARD_INLINE Vec<T> derivative_of_cap(Vec<T> score, Vec<T> softcap) {
  const Vec<T> tanh = score / softcap, one = broadcast(T(1));
  return select<T>(softcap == Vec<T>{}, one, (one - tanh) * (one + tanh));
}

// A weight that multiplies an int8 row. A hidden key's weight is unchanged, because its scale may
// be anything.
template <class T>
REGARD_INLINE Vec<T> scaled_weight(Vec<T> weight, Vec<T> scale) {
  const Mask<T> is_hidden = as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0)));
  return select<T>(is_hidden, weight, weight * scale);
}

// A weight after dropout. A hidden key's -0.0 is preserved, and so is NaN.
template <class T>
REGARD_INLINE Vec<T> dropped_weight(Vec<T> weight, Vec<T> factor) {
  return weight * factor;
}

}  // namespace
}  // namespace regard
