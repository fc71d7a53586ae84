// How a score is formed and weighed, one step per function: the only place that says so. Kernels
// differ in what lies in their lanes (queries, or keys in a decode) and call these on their
// vectors.
//
//   product = (query scaled) . key            query_scale: into the product's units
//   score   = softcap tanh(product / softcap) capped, where there is a softcap
//   score   = function(score)                 function_of_scores, where the caller has one
//   added   = bias                            in_log2_units
//             - slope |position - key|        with_alibi
//             + distance_bias[key - position] with_distance_bias
//             or -inf                         where a mask or the position hides the key
//   score   = score + added, or -inf          with_added
//   weight  = 2^(score - reference), or -0.0  weight_of; softmax_state.hpp has the sum of these,
//           = 2^(score - lse)                 at_most_lse, where the lse is known
//   weight  = weight times the value's scale  scaled_weight, of values in int8, after the sum
//   weight  = weight times 0 or 1 / (1 - p)   dropped_weight, likewise; dropout.hpp has the factor
//
// Scores and what is added to them are in log2 units.
#pragma once

#include "../../simd/tanh.hpp"
#include "softmax_state.hpp"

namespace regard {
namespace {

// Weights under 2^kNegligible count as 0: a sum of about 1 does not change by them, and their
// products with values would be subnormal, which costs a microcode assist of a hundred cycles each
// (ALiBi over 4096 keys took 6.8 times its time; docs/lab-notes.md).
template <class T>
constexpr T kNegligible = sizeof(T) == 4 ? T(-100) : T(-960);

// What is added to scores: nothing, finite numbers (or NaN), or also -inf, which hides: it is
// chosen over a score of any value.
enum class Bias { none, adds, hides };

// The cap as arithmetic in T can hold it, 0 for none. One beyond the largest scores changes none;
// under the smallest of these all weights are equal to the last bit, whatever the scores.
template <class T>
REGARD_INLINE double softcap_within(double softcap) {
  constexpr double kMost = sizeof(T) == 4 ? 1e37 : 1e307, kLeast = sizeof(T) == 4 ? 1e-20 : 1e-200;
  if (softcap > kMost) return 0;
  return softcap != 0 && softcap < kLeast ? kLeast : softcap;
}

// `head` is counted from the group's first, here and in what follows.
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

// Whether the heads of a group may differ in what multiplies their queries.
REGARD_INLINE bool has_query_scales(const AttentionProblem& problem) {
  return problem.scales.data || problem.softcaps.data;
}

// Scores come out of the product in log2 units, or, where they are capped, in the units of
// tanh_of_log2_units.
template <class T>
REGARD_INLINE T query_scale(double scale, double softcap) {
  return nearest_finite<T>(softcap == 0 ? scale * kLog2E : scale * kLog2E * (2 / softcap));
}

// Of all heads, where they do not differ.
template <class T>
REGARD_INLINE T query_scale(const AttentionProblem& problem) {
  return query_scale<T>(problem.scale, softcap_within<T>(problem.softcap));
}

// `softcap` is in log2 units; where it is 0, the product is the score.
template <class T>
REGARD_INLINE Vec<T> capped(Vec<T> product, Vec<T> softcap) {
  return select<T>(softcap == Vec<T>{}, product, softcap * tanh_of_log2_units<T>(product));
}

// A bias in log2 units; a finite one whose product overflows stays the farthest finite number.
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

// added - slope |distance - within|, kept finite where it does not hide. `distance` is from the
// query to a tile's first key, `within` from there to the key: exact under 2^24 (float).
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

// Whether a key at `here` is outside what a query sees by position. `first` is 0 for sink tokens. V
// is a number, or a vector of them.
template <class V>
REGARD_INLINE auto is_hidden(V here, V first, V end) {
  return (here < first) | (here >= end);
}

template <class T, Bias kBias>
REGARD_INLINE Vec<T> with_added(Vec<T> score, Vec<T> added) {
  const Vec<T> sum = score + added, hidden = broadcast(-kInfinity<T>);
  return kBias == Bias::hides ? select<T>(added == hidden, hidden, sum) : sum;
}

// `instead` of a weight where `added` hides.
template <class T>
REGARD_INLINE Vec<T> unless_hidden(Vec<T> weight, Vec<T> added, Vec<T> instead) {
  return select<T>(added == broadcast(-kInfinity<T>), instead, weight);
}

// 2^(score - reference), 0 where that is under 2^lowest. What was added to the score is at
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

// A score whose weight is 2^(score - lse). No weight is above 1. But lse is rounded, and where
// scores are as large as 1e30, the difference of a score and its lse may be larger than any
// exponent.
template <class T>
REGARD_INLINE Vec<T> at_most_lse(Vec<T> score, Vec<T> lse) {
  return lse < score ? lse : score;  // NaN stays
}

// The derivative of a capped score by the product that it comes from: 1 - (score / softcap)^2.
template <class T>
REGARD_INLINE Vec<T> derivative_of_cap(Vec<T> score, Vec<T> softcap) {
  const Vec<T> tanh = score / softcap, one = broadcast(T(1));
  return select<T>(softcap == Vec<T>{}, one, (one - tanh) * (one + tanh));
}

// A weight by which a row of int8 is multiplied. A hidden key's stays: its scale may be anything.
template <class T>
REGARD_INLINE Vec<T> scaled_weight(Vec<T> weight, Vec<T> scale) {
  const Mask<T> is_hidden = as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0)));
  return select<T>(is_hidden, weight, weight * scale);
}

// A weight after dropout. A hidden key's -0.0 stays, and a NaN does.
template <class T>
REGARD_INLINE Vec<T> dropped_weight(Vec<T> weight, Vec<T> factor) {
  return weight * factor;
}

}  // namespace
}  // namespace regard
