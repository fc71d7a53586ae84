// Scores of one row and one block to weights, and the row's running softmax.
#pragma once

#include "decode_workspace.hpp"
#include "online_softmax.hpp"

namespace regard {
namespace {

template <class Shape, class Body>
REGARD_INLINE void for_steps(std::uint32_t steps, Body body) {
  for (; steps != 0; steps &= steps - 1) body(__builtin_ctz(steps) * kDecodeStep<Shape>);
}

// The sum of a tile's weights, in the order of sum_rows.
template <int kTile, class T>
REGARD_INLINE T sum_tile(const T* weights) {
  T row[kTile];
#pragma GCC unroll 8
  for (int r = 0; r < kTile; ++r) row[r] = weights[r];
#pragma GCC unroll 4
  for (int half = kTile / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int r = 0; r < half; ++r) row[r] = row[r] + row[r + half];
  return row[0];
}

// 2^(score - reference) of `count` keys, a whole number of vectors or a part of one.
template <class T>
REGARD_INLINE void exp2_of_keys(T* scores, const T* bias, T reference, int count) {
  for (int k = 0; k < count; k += kLanes<T>) {
    Vec<T> weight = exp2(load<T>(scores + k) - broadcast(reference), kNegligible<T>);
    if (bias)
      weight = select<T>(load(bias + k) == broadcast(-kInfinity<T>), broadcast(T(-0.0)), weight);
    if (count - k >= kLanes<T>) {
      store(scores + k, weight);
    } else {
      for (int i = 0; i < count - k; ++i) scores[k + i] = weight[i];
    }
  }
}

// Weights of a step, tile by tile, the reference moved wherever a tile exceeds its limit; what the block
// and the output have gathered before is rescaled. Returns the block's sum with theirs.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE T weigh_and_move(std::uint32_t steps, int begin, int row, T* scores, const T* bias,
                                 T block_sum, DecodeWorkspace<T>& work) {
  constexpr int kTile = Shape::kRows;
  const SoftmaxState<T>& state = work.state;
  for (int k = begin; k < begin + kDecodeStep<Shape>; k += kTile) {
    T top = scores[k];
    for (int r = 1; r < kTile; ++r) top = top > scores[k + r] ? top : scores[k + r];
    T factor = T(1);
    if (top > state.limit[row]) {
      if (state.limit[row] > -kInfinity<T>)
        factor = exp2(broadcast(state.reference[row] - top))[0];
      state.reference[row] = top;
      state.limit[row] = top + T(kThreshold);
    }
    exp2_of_keys(scores + k, bias ? bias + k : nullptr, state.reference[row], kTile);
    block_sum = block_sum * factor + sum_tile<kTile>(scores + k);
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

// scores -> weights of one row, in place; sum and reference follow.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void weigh_row(std::uint32_t steps, int row, DecodeWorkspace<T>& work) {
  constexpr int kStep = kDecodeStep<Shape>;
  constexpr int kBlock = round_up(Shape::kBlockKeys, kStep);
  T* scores = work.scores + row * kBlock;
  const T* bias = work.has_bias ? work.bias + row * kBlock : nullptr;
  T block_sum = T(-0.0);
  for_steps<Shape>(steps, [&](int step) {
    bool exceeds = false;
    for (int i = step; i < step + kStep; i += kLanes<T>) {
      Vec<T> score = load<T>(scores + i);
      if (work.key_scales)
        score = score * broadcast(work.score_factor[row]) * load<T>(work.key_scales + i);
      if (work.softcap != T(0)) score = broadcast(work.softcap) * tanh_of_log2_units<T>(score);
      if (bias) {
        const Vec<T> added = load(bias + i), hidden = broadcast(-kInfinity<T>);
        score = select<T>(added == hidden, hidden, score + added);
      }
      store(scores + i, score);
      exceeds |= any_greater(score, broadcast(work.state.limit[row]));
    }
    if (__builtin_expect(exceeds, false)) {
      block_sum = weigh_and_move<Shape>(steps, step, row, scores, bias, block_sum, work);
      return;
    }
    exp2_of_keys(scores + step, bias ? bias + step : nullptr, work.state.reference[row], kStep);
    for (int tile = step; tile < step + kStep; tile += Shape::kRows)
      block_sum = block_sum + sum_tile<Shape::kRows>(scores + tile);
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
