// Converts the scores of one row and one block to weights, and updates the row's running softmax.
#pragma once

#include <utility>

#include "decode_workspace.hpp"

namespace regard {
namespace {

// Adds to each lane the lane kDistance above it.
template <int kDistance, std::size_t... kLane>
REGARD_INLINE Vec<float> add_lanes_above(Vec<float> v, std::index_sequence<kLane...>) {
  return v +
         __builtin_shufflevector(v, v, static_cast<int>((kLane + kDistance) % sizeof...(kLane))...);
}

// Sums every kCount lanes into the lowest of them, in the order of sum_rows.
template <int kCount>
REGARD_INLINE Vec<float> sum_lanes(Vec<float> v) {
  if constexpr (kCount == 1)
    return v;
  else
    return sum_lanes<kCount / 2>(add_lanes_above<kCount / 2>(
        v, std::make_index_sequence<static_cast<std::size_t>(kWidth)>()));
}

// Adds the sums of tiles to `sum`, one tile after another, each in the order of sum_rows.
template <int kTile>
REGARD_INLINE float add_tiles(float sum, const float* weights, int count) {
  constexpr int kParts = kTile > kWidth ? kTile / kWidth : 1;  // vectors of a tile
  constexpr int kTogether = kTile / kParts;
  for (int k = 0; k < count; k += kParts * kWidth) {
    Vec<float> part[kParts];
    for (int i = 0; i < kParts; ++i) part[i] = load<float>(weights + k + i * kWidth);
#pragma GCC unroll 4
    for (int half = kParts / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) part[i] = part[i] + part[i + half];
    const Vec<float> sums = sum_lanes<kTogether>(part[0]);
#pragma GCC unroll 16
    for (int lane = 0; lane < kWidth; lane += kTogether) sum = sum + sums[lane];
  }
  return sum;
}

// Computes the weights of `count` keys, which are a whole number of vectors or part of one.
REGARD_INLINE void weigh_keys(float* scores, const float* bias, float reference, int count) {
  for (int k = 0; k < count; k += kWidth) {
    const Vec<float> score = load<float>(scores + k), from = broadcast(reference);
    const Vec<float> weight = bias ? weight_of<float, Bias::hides>(score, from, bias, k)
                                   : weight_of<float, Bias::none>(score, from, nullptr, 0);
    if (count - k >= kWidth) {
      store(scores + k, weight);
    } else {
      for (int i = 0; i < count - k; ++i) scores[k + i] = weight[i];
    }
  }
}

// Computes the weights of a step, tile by tile. Moves the reference whenever a tile exceeds its
// limit, and rescales the accumulated sums and outputs. Returns the block's sum including this
// step.
REGARD_NOINLINE float weigh_and_move(std::uint32_t steps, int begin, int row, float* scores,
                                     const float* bias, float block_sum, DecodeWorkspace& work) {
  constexpr int kTile = DecodeShape::kRows;
  const SoftmaxState<float>& state = work.state;
  for (int k = begin; k < begin + kDecodeStep; k += kTile) {
    float top = scores[k];
    for (int r = 1; r < kTile; ++r) top = top > scores[k + r] ? top : scores[k + r];
    const MovedReference<float> moved = move_reference<float>(
        broadcast(top), broadcast(state.reference[row]), broadcast(state.limit[row]));
    const float factor = moved.factor[0];
    state.reference[row] = moved.reference[0];
    state.limit[row] = moved.limit[0];
    weigh_keys(scores + k, bias ? bias + k : nullptr, state.reference[row], kTile);
    float weights[kTile];
    for (int r = 0; r < kTile; ++r) weights[r] = scores[k + r];
    block_sum = block_sum * factor + sum_rows(weights);
    if (factor == 1.0f) continue;
    state.sum[row] *= factor;
    for_steps(steps, [&](int before) {
      for (int j = before; j < before + kDecodeStep && j < k; ++j) scores[j] *= factor;
    });
    if (work.is_fresh) continue;
    float* output = work.output + row * work.padded_value_dim;
    for (std::int64_t i = 0; i < work.padded_value_dim; i += kWidth)
      store(output + i, load<float>(output + i) * broadcast(factor));
  }
  return block_sum;
}

// Converts products of a row to scaled and capped scores.
REGARD_INLINE Vec<float> capped_scores(Vec<float> product, int at, int row,
                                       const DecodeWorkspace& work) {
  if (work.key_scales)
    product = product * broadcast(work.score_factor[row]) * load<float>(work.key_scales + at);
  Vec<float> score = product * broadcast(work.scales[row]);
  if (work.mean_scores) score = score + broadcast(work.mean_scores[row]);
  return work.softcaps ? capped<float>(score, broadcast(work.softcaps[row])) : score;
}

// Converts products to the results of the caller's function. Calls the function once for the keys
// of consecutive steps.
REGARD_NOINLINE void function_of_row(const AttentionProblem& problem, const AttentionTask& task,
                                     std::int64_t key, std::uint32_t steps, int row, float* scores,
                                     const DecodeWorkspace& work) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  int begin = 0, end = 0;
  const auto call = [&] {
    const std::int64_t left = task.kv_len - key - begin, keys = end - begin;
    if (keys > 0 && left > 0)
      call_function(problem, task, problem.score_function->function, (work.first_row + row) % group,
                    scores + begin, 1, left < keys ? left : keys, 1, work.function_positions + row,
                    key + begin);
  };
  for_steps(steps, [&](int step) {
    for (int i = step; i < step + kDecodeStep; i += kWidth)
      store(scores + i, capped_scores(load<float>(scores + i), i, row, work));
    if (step != end) {
      call();
      begin = step;
    }
    end = step + kDecodeStep;
  });
  call();
}

// Converts products of queries and keys to scores, in place. The block begins at `key`. Returns
// whether a score exceeds the row's limit.
REGARD_INLINE bool finish_scores(const AttentionProblem& problem, const AttentionTask& task,
                                 std::int64_t key, std::uint32_t steps, int row, float* scores,
                                 const float* bias, const DecodeWorkspace& work) {
  bool exceeds = false;
  const bool has_function = work.function_positions != nullptr;
  if (has_function) function_of_row(problem, task, key, steps, row, scores, work);
  for_steps(steps, [&](int step) {
    for (int i = step; i < step + kDecodeStep; i += kWidth) {
      Vec<float> score = load<float>(scores + i);
      score = has_function ? within_limits<float>(score) : capped_scores(score, i, row, work);
      if (bias) score = with_added<float, Bias::hides>(score, load(bias + i));
      store(scores + i, score);
      exceeds |= any_greater(score, broadcast(work.state.limit[row]));
    }
  });
  return exceeds;
}

// Converts the scores of one row to weights, in place, and updates the row's sum and reference.
REGARD_NOINLINE void weigh_row(const AttentionProblem& problem, const AttentionTask& task,
                               std::int64_t key, std::uint32_t steps, int row,
                               DecodeWorkspace& work) {
  float* scores = work.scores + row * kDecodeBlock;
  const float* bias = work.has_bias ? work.bias + row * kDecodeBlock : nullptr;
  float block_sum = -0.0f;
  const bool moves = finish_scores(problem, task, key, steps, row, scores, bias, work);
  for_steps(steps, [&](int step) {
    if (__builtin_expect(moves, false)) {
      const float limit = work.state.limit[row];
      bool exceeds = false;
      for (int i = step; i < step + kDecodeStep; i += kWidth)
        exceeds |= any_greater(load<float>(scores + i), broadcast(limit));
      if (exceeds) {
        block_sum = weigh_and_move(steps, step, row, scores, bias, block_sum, work);
        return;
      }
    }
    weigh_keys(scores + step, bias ? bias + step : nullptr, work.state.reference[row], kDecodeStep);
    block_sum = add_tiles<DecodeShape::kRows>(block_sum, scores + step, kDecodeStep);
  });
  work.state.sum[row] += block_sum;
  if (!work.value_scales) return;
  for_steps(steps, [&](int k) {
    for (int i = k; i < k + kDecodeStep; i += kWidth)
      store(scores + i,
            scaled_weight<float>(load<float>(scores + i), load<float>(work.value_scales + i)));
  });
}

}  // namespace
}  // namespace regard
