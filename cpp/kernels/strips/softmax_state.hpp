// The state of an online softmax over the keys that a row has seen, one row per lane (Milakov and
// Gimelshein 2018; the rare rescaling is from FlashAttention 4).
//
// A lane keeps a reference m near the largest score s that it has seen and
//
//   sum    = sum over its keys of e^(s - m)            output = sum of e^(s - m) value
//
// Only when a score exceeds m by more than `kReach` does m move, and the sums so far are rescaled.
// Until then, a weight is at most 2^kThreshold, which loses no precision. A lane's first visible
// score always moves m, and no other lane's score does.
//
// Three states share one float, by the IEEE rules for signed zeros:
//   sum = -0.0   fully masked so far: the lane started with -0.0, and a hidden key adds -0.0
//   sum = +0.0   the lane has seen keys, all with score -inf
//   sum > 0      otherwise; NaN if a score was NaN or +inf
// A hidden key's weight is therefore -0.0, and a visible key's weight never is (except in a lane
// that is NaN). This also tells the second product what to skip.
//
// A sink is a key without a value that every query of its head sees first: the reference starts at
// the sink, and the sum at 1.
//
// States over disjoint sets of keys merge:
//
//   m = max(m1, m2)    sum = sum1 e^(m1 - m) + sum2 e^(m2 - m)    output likewise
//
// A row's keys are summed in chunks that begin at multiples of kChunkKeys. They are merged in
// order, after the sink if there is one, so different threads may compute them without affecting
// the bits. Merging a fully masked state changes no bit.
#pragma once

#include "../../problem/attention.hpp"
#include "../../simd/exp.hpp"
#include "../mask_value.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

constexpr int kThreshold = 8;

template <class T>
struct SoftmaxState {
  T* reference;
  T* limit;  // the score above which the reference moves; above -inf if there is a reference
  T* sum;
};

// The lse of rows that are known: high + low, because one number would round the weights of scores
// around 1000 to four digits.
template <class T>
struct RowLse {
  T* high;
  T* low;
};

// A reference moves if a score exceeds it by more than this.
template <class T>
constexpr T kReach = static_cast<T>(kThreshold * kLn2);

template <class T>
REGARD_INLINE void start_state(const SoftmaxState<T>& state, int lanes) {
  for (int lane = 0; lane < lanes; lane += kLanes<T>) {
    store(state.reference + lane, Vec<T>{});
    store(state.limit + lane, broadcast(-kInfinity<T>));
    store(state.sum + lane, broadcast(T(-0.0)));
  }
}

// A lane's keys begin with its head's sink; -inf means no sink. Row r belongs to head r % group.
template <class T>
REGARD_NOINLINE void start_with_sinks(const AttentionProblem& problem, const AttentionTask& task,
                                      std::int64_t first_row, const SoftmaxState<T>& state,
                                      int lanes) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (int lane = 0; lane < lanes; ++lane) {
    const double sink =
        problem.sinks[(task.first_head + (first_row + lane) % group) * problem.sinks_stride];
    if (sink == -kInfinity<double>) continue;
    state.reference[lane] = nearest_finite<T>(sink);
    state.limit[lane] = state.reference[lane] + kReach<T>;
    state.sum[lane] = T(1);
  }
}

// A reference after a score above its limit, and the factor for the earlier sums.
template <class T>
struct MovedReference {
  Vec<T> reference;
  Vec<T> limit;
  Vec<T> factor;
  Mask<T> rescales;  // lanes that moved and have earlier sums
};

// Lanes whose `top` score does not exceed their limit are unchanged.
template <class T>
REGARD_INLINE MovedReference<T> move_reference(Vec<T> top, Vec<T> reference, Vec<T> limit) {
  const Mask<T> moves = top > limit;
  const Mask<T> rescales = moves & (limit > broadcast(-kInfinity<T>));
  const Vec<T> moved = select<T>(moves, top, reference);
  return {moved, select<T>(moves, moved + broadcast(kReach<T>), limit),
          select<T>(rescales, exp(reference - moved), broadcast(T(1))), rescales};
}

// The sum of a tile's weights, by halves: (0 + 4) + (2 + 6) ... V is a number or a vector of
// numbers.
template <int kRows, class V>
REGARD_INLINE V sum_rows(V (&row)[kRows]) {
#pragma GCC unroll 4
  for (int half = kRows / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int r = 0; r < half; ++r) row[r] = row[r] + row[r + half];
  return row[0];
}

// The factors of two outputs that are merged.
template <class T>
struct Shares {
  Vec<T> total;
  Vec<T> part;
};

// Merges `part` into `total`, for a vector of lanes starting at `lane`.
template <class T>
REGARD_INLINE Shares<T> merge_lanes(const SoftmaxState<T>& total, const SoftmaxState<T>& part,
                                    int lane) {
  const Vec<T> nothing = broadcast(-kInfinity<T>), one = broadcast(T(1));
  const Vec<T> reference = load(total.reference + lane), other = load(part.reference + lane);
  const Vec<T> limit = load(total.limit + lane), other_limit = load(part.limit + lane);
  const Mask<T> has_total = limit > nothing, has_part = other_limit > nothing;
  const Mask<T> takes_part = has_part & (~has_total | (other > reference));
  const Vec<T> merged = select<T>(takes_part, other, reference);
  const Shares<T> shares{select<T>(has_total, exp(reference - merged), one),
                         select<T>(has_part, exp(other - merged), one)};
  store(total.reference + lane, merged);
  store(total.limit + lane, select<T>(takes_part, other_limit, limit));
  store(total.sum + lane,
        load(total.sum + lane) * shares.total + load(part.sum + lane) * shares.part);
  return shares;
}

// 1 / sum, or 0 for a fully masked lane.
template <class T>
REGARD_INLINE Vec<T> reciprocal_of_sum(Vec<T> sum) {
  const Mask<T> saw_nothing = as_bits<T>(sum) == as_bits<T>(broadcast(T(-0.0)));
  return select<T>(saw_nothing, Vec<T>{}, broadcast(T(1)) / sum);
}

// The natural logarithm of the sum of exp(score).
template <class T>
REGARD_INLINE double log_sum_exp(T reference, T sum) {
  return static_cast<double>(reference) + __builtin_log2(static_cast<double>(sum)) * kLn2;
}

}  // namespace
}  // namespace regard
