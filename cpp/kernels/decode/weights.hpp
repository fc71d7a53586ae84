// Converts the scores of one row and one block to weights, and updates the row's running softmax.
#pragma once

#include <utility>

#include "decode_workspace.hpp"

namespace regard {
namespace {

// Adds to each lane the lane kDistance above it.
template <int kDistance, class T, std::size_t... kLane>
REGARD_INLINE Vec<T> add_lanes_above(Vec<T> v, std::index_sequence<kLane...>) {
  return v +
         __builtin_shufflevector(v, v, static_cast<int>((kLane + kDistance) % sizeof...(kLane))...);
}

// Sums every kCount lanes into the lowest of them, in the order of sum_rows.
template <int kCount, class T>
REGARD_INLINE Vec<T> sum_lanes(Vec<T> v) {
  if constexpr (kCount == 1)
    return v;
  else
    return sum_lanes<kCount / 2, T>(add_lanes_above<kCount / 2, T>(
        v, std::make_index_sequence<static_cast<std::size_t>(kLanes<T>)>()));
}

// Adds the sums of tiles to `sum`, one tile after another, each in the order of sum_rows.
template <int kTile, class T>
REGARD_INLINE T add_tiles(T sum, const T* weights, int count) {
  constexpr int kParts = kTile > kLanes<T> ? kTile / kLanes<T> : 1;  // vectors of a tile
  constexpr int kWidth = kTile / kParts;
  for (int k = 0; k < count; k += kParts * kLanes<T>) {
    Vec<T> part[kParts];
    for (int i = 0; i < kParts; ++i) part[i] = load<T>(weights + k + i * kLanes<T>);
#pragma GCC unroll 4
    for (int half = kParts / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) part[i] = part[i] + part[i + half];
    const Vec<T> sums = sum_lanes<kWidth, T>(part[0]);
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes<T>; lane += kWidth) sum = sum + sums[lane];
  }
  return sum;
}

// Computes the weights of `count` keys, which are a whole number of vectors or part of one.
template <class T>
REGARD_INLINE void weigh_keys(T* scores, const T* bias, T reference, int count) {
  for (int k = 0; k < count; k += kLanes<T>) {
    const Vec<T> score = load<T>(scores + k), from = broadcast(reference);
    const Vec<T> weight = bias ? weight_of<T, Bias::hides>(score, from, bias, k)
                               : weight_of<T, Bias::none>(score, from, nullptr, 0);
    if (count - k >= kLanes<T>) {
      store(scores + k, weight);
    } else {
      for (int i = 0; i < count - k; ++i) scores[k + i] = weight[i];
    }
  }
}

// Computes the weights of a step, tile by tile. Moves the reference whenever a tile exceeds its
// limit, and rescales the accumulated sums and outputs. Returns the block's sum including this
// step.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE T weigh_and_move(std::uint32_t steps, int begin, int row, T* scores, const T* bias,
                                 T block_sum, DecodeWorkspace<T>& work) {
  constexpr int kTile = Shape::kRows;
  const SoftmaxState<T>& state = work.state;
  for (int k = begin; k < begin + kDecodeStep<Shape>; k += kTile) {
    T top = scores[k];
    for (int r = 1; r < kTile; ++r) top = top > scores[k + r] ? top : scores[k + r];
    const MovedReference<T> moved = move_reference<T>(
        broadcast(top), broadcast(state.reference[row]), broadcast(state.limit[row]));
    const T factor = moved.factor[0];
    state.reference[row] = moved.reference[0];
    state.limit[row] = moved.limit[0];
    weigh_keys(scores + k, bias ? bias + k : nullptr, state.reference[row], kTile);
    T weights[kTile];
    for (int r = 0; r < kTile; ++r) weights[r] = scores[k + r];
    block_sum = block_sum * factor + sum_rows(weights);
    if (factor == T(1)) continue;
    state.sum[row] *= factor;
    for_steps<Shape>(steps, [&](int before) {
      for (int j = before; j < before + kDecodeStep<Shape> && j < k; ++j) scores[j] *= factor;
    });
    if (work.is_fresh) continue;
    T* output = work.output + row * work.padded_value_dim;
    for (std::int64_t i = 0; i < work.padded_value_dim; i += kLanes<T>)
      store(output + i, load<T>(output + i) * broadcast(factor));
  }
  return block_sum;
}

// Converts products of a row to scaled and capped scores.
template <class T>
REGARD_INLINE Vec<T> capped_scores(Vec<T> product, int at, int row,
                                   const DecodeWorkspace<T>& work) {
  if (work.key_scales)
    product = product * broadcast(work.score_factor[row]) * load<T>(work.key_scales + at);
  const Vec<T> score = product * broadcast(work.scales[row]);
  return work.softcaps ? capped<T>(score, broadcast(work.softcaps[row])) : score;
}

// Converts products to the results of the caller's function. Calls the function once for the keys
// of consecutive steps.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void function_of_row(const AttentionProblem& problem, const AttentionTask& task,
                                     std::int64_t key, std::uint32_t steps, int row, T* scores,
                                     const DecodeWorkspace<T>& work) {
  constexpr int kStep = kDecodeStep<Shape>;
  const std::int64_t group = problem.heads / problem.kv_heads;
  int begin = 0, end = 0;
  const auto call = [&] {
    const std::int64_t left = task.kv_len - key - begin, keys = end - begin;
    if (keys > 0 && left > 0)
      call_function(problem, task, problem.score_function->function, (work.first_row + row) % group,
                    scores + begin, 1, left < keys ? left : keys, 1, work.function_positions + row,
                    key + begin);
  };
  for_steps<Shape>(steps, [&](int step) {
    for (int i = step; i < step + kStep; i += kLanes<T>)
      store(scores + i, capped_scores(load<T>(scores + i), i, row, work));
    if (step != end) {
      call();
      begin = step;
    }
    end = step + kStep;
  });
  call();
}

// Converts products of queries and keys to scores, in place. The block begins at `key`. Returns
// whether a score exceeds the row's limit.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE bool finish_scores(const AttentionProblem& problem, const AttentionTask& task,
                                 std::int64_t key, std::uint32_t steps, int row, T* scores,
                                 const T* bias, const DecodeWorkspace<T>& work) {
  bool exceeds = false;
  const bool has_function = work.function_positions != nullptr;
  if (has_function) function_of_row<Shape>(problem, task, key, steps, row, scores, work);
  for_steps<Shape>(steps, [&](int step) {
    for (int i = step; i < step + kDecodeStep<Shape>; i += kLanes<T>) {
      Vec<T> score = load<T>(scores + i);
      score = has_function ? within_limits<T>(score) : capped_scores(score, i, row, work);
      if (bias) score = with_added<T, Bias::hides>(score, load(bias + i));
      store(scores + i, score);
      exceeds |= any_greater(score, broadcast(work.state.limit[row]));
    }
  });
  return exceeds;
}

// Converts the scores of one row to weights, in place, and updates the row's sum and reference.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void weigh_row(const AttentionProblem& problem, const AttentionTask& task,
                               std::int64_t key, std::uint32_t steps, int row,
                               DecodeWorkspace<T>& work) {
  constexpr int kStep = kDecodeStep<Shape>;
  constexpr int kBlock = round_up(Shape::kBlockKeys, kStep);
  T* scores = work.scores + row * kBlock;
  const T* bias = work.has_bias ? work.bias + row * kBlock : nullptr;
  T block_sum = T(-0.0);
  const bool moves = finish_scores<Shape>(problem, task, key, steps, row, scores, bias, work);
  for_steps<Shape>(steps, [&](int step) {
    if (__builtin_expect(moves, false)) {
      const T limit = work.state.limit[row];
      bool exceeds = false;
      for (int i = step; i < step + kStep; i += kLanes<T>)
        exceeds |= any_greater(load<T>(scores + i), broadcast(limit));
      if (exceeds) {
        block_sum = weigh_and_move<Shape>(steps, step, row, scores, bias, block_sum, work);
        return;
      }
    }
    weigh_keys(scores + step, bias ? bias + step : nullptr, work.state.reference[row], kStep);
    block_sum = add_tiles<Shape::kRows>(block_sum, scores + step, kStep);
  });
  work.state.sum[row] += block_sum;
  if (!work.value_scales) return;
  for_steps<Shape>(steps, [&](int k) {
    for (int i = k; i < k + kStep; i += kLanes<T>)
      store(scores + i, scaled_weight<T>(load<T>(scores + i), load<T>(work.value_scales + i)));
  });
}

}  // namespace
}  // namespace regard
