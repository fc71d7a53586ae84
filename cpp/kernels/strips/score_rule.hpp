// Defines how a score is computed and converted to a weight, with one function per step. This is
// the only definition. Kernels differ in the contents of their lanes (queries, or keys in a decode)
// and call these functions on their vectors.
//
//   product = (query scaled) . key            query_scale: into the product's units
//   score   = softcap tanh(product / softcap) capped, if there is a softcap
//   score   = function(score)                 function_of_scores, if the caller has one
//   added   = bias                            in_log2_units
//             - slope |position - key|        with_alibi
//             + distance_bias[key - position] with_distance_bias
//             or -inf                         if a mask or the position hides the key
//   score   = score + added, or -inf          with_added
//   weight  = 2^(score - reference), or -0.0  weight_of; see softmax_state.hpp for the sum,
//           = 2^(score - lse)                 at_most_lse, if the lse is known
//   weight  = weight times the value's scale  scaled_weight, of values in int8, after the sum
//   weight  = weight times 0 or 1 / (1 - p)   dropped_weight, likewise; see dropout.hpp
//
// Scores and the terms added to them are in log2 units.
#pragma once

#include "../../simd/tanh.hpp"
#include "softmax_state.hpp"

namespace regard {
namespace {

// Weights below 2^kNegligible count as 0. They do not change a sum of about 1, but their products
// with values would be subnormal, and each subnormal product costs a microcode assist of a hundred
// cycles (ALiBi over 4096 keys took 6.8 times as long; docs/lab-notes/forward.md).
template <class T>
constexpr T kNegligible = sizeof(T) == 4 ? T(-100) : T(-960);

// The kind of bias that is added to scores: nothing, finite numbers (or NaN), or also -inf, which
// hides. -inf takes precedence over a score of any value.
enum class Bias { none, adds, hides };

// The cap in the range that arithmetic in T can handle, 0 for none. A cap beyond the largest scores
// does not change any score. With a cap below kLeast, all weights are equal to the last bit,
// whatever the scores are.
template <class T>
REGARD_INLINE double softcap_within(double softcap) {
  constexpr double kMost = sizeof(T) == 4 ? 1e37 : 1e307, kLeast = sizeof(T) == 4 ? 1e-20 : 1e-200;
  if (softcap > kMost) return 0;
  return softcap != 0 && softcap < kLeast ? kLeast : softcap;
}

// `head` is counted from the group's first head, here and below.
template <class T>
REGARD_INLINE double softcap_of(const AttentionProblem& problem, const AttentionTask& task,
                                std::int64_t head) {
  return softcap_within<T>(task.softcaps ? task.softcaps[head * problem.softcaps.head_stride]
                                         : problem.softcap);
}

REGARD_INLINE bool has_softcap(const AttentionProblem& problem) {
  return problem.softcap != 0 || problem.softcaps.data;
}

REGARD_INLINE double scale_of(const AttentionProblem& problem, const AttentionTask& task,
                              std::int64_t head) {
  return task.scales ? task.scales[head * problem.scales.head_stride] : problem.scale;
}

// Whether the heads of a group may have different query scales.
REGARD_INLINE bool has_query_scales(const AttentionProblem& problem) {
  return problem.scales.data || problem.softcaps.data;
}

// Products are scores in log2 units or, if scores are capped, in the units of tanh_of_log2_units.
template <class T>
REGARD_INLINE T query_scale(double scale, double softcap) {
  return nearest_finite<T>(softcap == 0 ? scale * kLog2E : scale * kLog2E * (2 / softcap));
}

// For all heads, if they do not differ.
template <class T>
REGARD_INLINE T query_scale(const AttentionProblem& problem) {
  return query_scale<T>(problem.scale, softcap_within<T>(problem.softcap));
}

// `softcap` is in log2 units. If it is 0, the product is the score.
template <class T>
REGARD_INLINE Vec<T> capped(Vec<T> product, Vec<T> softcap) {
  return select<T>(softcap == Vec<T>{}, product, softcap * tanh_of_log2_units<T>(product));
}

// Converts a bias to log2 units. If the product of a finite bias overflows, the result is the most
// extreme finite number.
template <class T>
REGARD_INLINE Vec<T> in_log2_units(Vec<T> value) {
  const Vec<T> largest = broadcast(kLargest<T>);
  const Vec<T> scaled = value * broadcast(static_cast<T>(kLog2E));
  const Vec<T> above_lowest =
      select<T>((scaled < -largest) & (value >= -largest), -largest, scaled);
  return select<T>((scaled > largest) & (value <= largest), largest, above_lowest);
}

// One head's slope in log2 units.
template <class T>
REGARD_INLINE T slope_of(const AttentionProblem& problem, const AttentionTask& task,
                         std::int64_t head) {
  return nearest_finite<T>(task.alibi_slopes[head * problem.alibi_slopes.head_stride] * kLog2E);
}

// added - slope |distance - within|, kept finite if it does not hide. `distance` is from the query
// to a tile's first key, and `within` is from there to the key. Exact below 2^24 (float).
template <class T>
REGARD_INLINE Vec<T> with_alibi(Vec<T> added, Vec<T> slope, Vec<T> distance, Vec<T> within) {
  const Vec<T> away = distance - within;
  const Vec<T> sum = added - slope * maximum<T>(away, -away);
  const Vec<T> finite = maximum<T>(broadcast(-kLargest<T>), sum);  // NaN stays NaN
  return select<T>(added == broadcast(-kInfinity<T>), added, finite);
}

// added + distance_bias, likewise; both may be -inf, which hides.
template <class T>
REGARD_INLINE Vec<T> with_distance_bias(Vec<T> added, Vec<T> distance_bias) {
  const Vec<T> hidden = broadcast(-kInfinity<T>);
  const Vec<T> finite = maximum<T>(broadcast(-kLargest<T>), added + distance_bias);
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

// 2^(score - reference), or 0 if that is below 2^lowest. The term added to the score is at
// added[at].
template <class T, Bias kBias>
REGARD_INLINE Vec<T> weight_of(Vec<T> score, Vec<T> reference, const T* added, std::ptrdiff_t at,
                               T lowest = kNegligible<T>) {
  const Vec<T> weight = exp2(score - reference, lowest);
  if constexpr (kBias == Bias::hides)
    return unless_hidden<T>(weight, load(added + at), broadcast(T(-0.0)));
  else
    return weight;
}

// Limits a score whose weight is 2^(score - lse), because no weight exceeds 1. lse is rounded, so
// for scores as large as 1e30, the difference of a score and its lse may exceed any exponent.
template <class T>
REGARD_INLINE Vec<T> at_most_lse(Vec<T> score, Vec<T> lse) {
  return lse < score ? lse : score;  // NaN stays NaN
}

// The derivative of a capped score with respect to its product: 1 - (score / softcap)^2.
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
