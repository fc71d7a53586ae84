// Softmax states over disjoint sets of keys, joined (Milakov and Gimelshein 2018):
//
//   m = max(m1, m2)    sum = sum1 2^(m1 - m) + sum2 2^(m2 - m)    output alike
//
// A row's keys are gathered in chunks that begin at multiples of kChunkKeys, each as if it stood alone;
// the chunks are joined in order, behind the sink where there is one. So different threads may compute
// them, and the bits do not tell. Joining what has seen nothing changes no bit.
#pragma once

#include "../../simd/exp2.hpp"
#include "../mask_value.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

constexpr int kThreshold = 8;  // see online_softmax.hpp

template <class T>
REGARD_INLINE void start_state(const SoftmaxState<T>& state, int lanes) {
  for (int lane = 0; lane < lanes; lane += kLanes<T>) {
    store(state.reference + lane, Vec<T>{});
    store(state.limit + lane, broadcast(-kInfinity<T>));
    store(state.sum + lane, broadcast(T(-0.0)));
  }
}

// A lane's keys begin with its head's sink; one of -inf is none. Row r is of head r % group.
template <class T>
REGARD_NOINLINE void start_with_sinks(const AttentionProblem& problem, const AttentionTask& task,
                                      std::int64_t first_row, const SoftmaxState<T>& state, int lanes) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (int lane = 0; lane < lanes; ++lane) {
    const double sink = problem.sinks[task.first_head + (first_row + lane) % group];
    if (sink == -kInfinity<double>) continue;
    state.reference[lane] = nearest_finite<T>(sink * kLog2E);
    state.limit[lane] = state.reference[lane] + T(kThreshold);
    state.sum[lane] = T(1);
  }
}

// Factors of two outputs that are joined.
template <class T>
struct Shares {
  Vec<T> total;
  Vec<T> part;
};

// total = total joined with part, a vector of lanes from `lane` on. A limit above -inf says that a lane
// has a reference.
template <class T>
REGARD_INLINE Shares<T> merge_lanes(const SoftmaxState<T>& total, const SoftmaxState<T>& part,
                                   int lane) {
  const Vec<T> nothing = broadcast(-kInfinity<T>), one = broadcast(T(1));
  const Vec<T> reference = load(total.reference + lane), other = load(part.reference + lane);
  const Vec<T> limit = load(total.limit + lane), other_limit = load(part.limit + lane);
  const Mask<T> has_total = limit > nothing, has_part = other_limit > nothing;
  const Mask<T> takes_part = has_part & (~has_total | (other > reference));
  const Vec<T> joined = select<T>(takes_part, other, reference);
  const Shares<T> shares{select<T>(has_total, exp2(reference - joined), one),
                         select<T>(has_part, exp2(other - joined), one)};
  store(total.reference + lane, joined);
  store(total.limit + lane, select<T>(takes_part, other_limit, limit));
  store(total.sum + lane,
        load(total.sum + lane) * shares.total + load(part.sum + lane) * shares.part);
  return shares;
}

// Joins a strip's chunk with those before it and begins the next.
template <class T>
REGARD_NOINLINE void merge_chunk(Strip<T>& strip, std::int64_t padded_value_dim) {
  const int lanes = strip.vectors * kLanes<T>;
  for (int lane = 0; lane < lanes; lane += kLanes<T>) {
    const Shares<T> shares = merge_lanes(strip.total, strip.state, lane);
    for (std::int64_t row = 0; row < padded_value_dim; ++row) {
      T* to = strip.total_output + row * lanes + lane;
      const Vec<T> part = load(strip.output + row * lanes + lane) * shares.part;
      store(to, strip.total_is_fresh ? part : load<T>(to) * shares.total + part);
    }
  }
  strip.total_is_fresh = false;
  start_state(strip.state, lanes);
  strip.is_fresh = true;
}

}  // namespace
}  // namespace regard
