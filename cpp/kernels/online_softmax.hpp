// Softmax over keys that arrive tile by tile, lane by lane, without a score ever being stored
// (Milakov and Gimelshein 2018; the rare rescale is FlashAttention 4's).
//
// A lane keeps a reference m near the largest score s it has seen (s in log2 units) and
//
//   sum    = sum over its keys of 2^(s - m)            output = sum of 2^(s - m) value
//
// Accumulators of a tile of scores start at -m, so that they end as s - m and go straight to exp2.
// Only when a score exceeds m by more than `kThreshold` does m move: until then a weight is at most
// 2^kThreshold, which loses nothing in floating point. A lane's first visible score always moves it.
//
// Three states share one float, by IEEE's rules for signed zeros:
//   sum = -0.0   the lane has seen no key: it started there, and a hidden key adds -0.0
//   sum = +0.0   it has seen keys, all with score -inf
//   sum > 0      otherwise; NaN where a score was NaN or +inf
// So a hidden key's weight is -0.0 and a visible one's is never, which also tells the second product
// what to leave out. Whether a row saw a key thus follows from visibility and not from its scores.
//
// What moves a lane's reference is that lane's scores alone. All lanes of a tile go through
// `move_references` when one must, and come out with the bits that they would have had.
#pragma once

#include "../simd/exp2.hpp"
#include "micro_kernel.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

constexpr int kThreshold = 8;
constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;

template <class T>
constexpr T kInfinity = static_cast<T>(__builtin_inf());

enum class Bias {
  none,      // every key of the tile is visible to every lane
  select,    // bias is 0 where a key is visible and -inf where it is hidden
  additive,  // bias is a float mask's value in log2 units, -inf where hidden
};

// acc = scores of a tile of keys, relative to the reference.
//
// An additive bias is joined to -m before the score meets either: with a mask of -10000 both are
// large, and sums that start there would round at every step. The other two kinds start at -m both,
// since the same lane may meet a tile as either kind, depending on the lanes beside it.
template <class T, int kRows, int kVectors, Bias kBias>
REGARD_INLINE void score_tile(Accumulators<T, kRows, kVectors>& acc, const T* keys,
                              std::ptrdiff_t key_stride, const T* bias, const Strip<T>& strip,
                              const T* minus_reference, std::int64_t head_dim) {
  constexpr int kWidth = kVectors * kLanes<T>;
  if constexpr (kBias == Bias::additive) {
    clear<T, kRows, kVectors>(acc);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> start = load(minus_reference + v * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[r][v] = start;
    }
  }
  multiply_rows<T, kRows, kVectors>(acc, keys, key_stride, strip.queries, kWidth, head_dim);
  if constexpr (kBias != Bias::none) {
    const Vec<T> minus_infinity = broadcast(-kInfinity<T>);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> start = load(minus_reference + v * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec<T> added = load(bias + r * kWidth + v * kLanes<T>);
        const Vec<T> score =
            kBias == Bias::additive ? acc[r][v] + (added + start) : acc[r][v];
        acc[r][v] = select<T>(added == minus_infinity, minus_infinity, score);
      }
    }
  }
}

// weights = 2^acc, -0.0 where hidden.
template <class T, int kRows, int kVectors, Bias kBias>
REGARD_INLINE Vec<T> weight_of(Vec<T> score, const T* bias, int r, int v) {
  Vec<T> weight = exp2(score);
  if constexpr (kBias != Bias::none) {
    const Vec<T> added = load(bias + (r * kVectors + v) * kLanes<T>);
    weight = select<T>(added == broadcast(-kInfinity<T>), broadcast(T(-0.0)), weight);
  }
  return weight;
}

// The sum of a tile's weights, by halves: (0 + 4) + (2 + 6) ...
template <class T, int kRows>
REGARD_INLINE Vec<T> sum_rows(Vec<T> (&row)[kRows]) {
#pragma GCC unroll 4
  for (int half = kRows / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int r = 0; r < half; ++r) row[r] = row[r] + row[r + half];
  return row[0];
}

// The tile at `tile_weights` holds scores relative to the old references. Moves the reference of
// every lane that a score exceeds, rescales what those lanes have gathered so far, and leaves the
// tile's weights.
template <class T, int kRows, int kVectors, Bias kBias>
REGARD_NOINLINE void move_references(const T* keys, std::ptrdiff_t key_stride, const T* bias,
                                     const Strip<T>& strip, T* block_weights,
                                     std::int64_t keys_before, T* exact_tile,
                                     std::int64_t head_dim, std::int64_t padded_value_dim) {
  constexpr int kWidth = kVectors * kLanes<T>;
  T* tile = block_weights + keys_before * kWidth;

  // A reference far from the score cost it bits when the sum started there, so a lane that has one
  // takes its scores from a sum that starts at zero. A lane that had none did start at zero.
  {
    Accumulators<T, kRows, kVectors> acc;
    const Vec<T> no_reference[kVectors] = {};
    score_tile<T, kRows, kVectors, kBias>(acc, keys, key_stride, bias, strip,
                                          reinterpret_cast<const T*>(no_reference), head_dim);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        store(exact_tile + (r * kVectors + v) * kLanes<T>, acc[r][v]);
  }

  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes<T>;
    const Vec<T> minus_old = load(strip.minus_reference + lane);
    const Vec<T> threshold = load(strip.threshold + lane);
    Vec<T> top_relative = load(tile + lane);
    Vec<T> top = load(exact_tile + lane);
    for (int r = 1; r < kRows; ++r) {
      top_relative = maximum<T>(top_relative, load(tile + r * kWidth + lane));
      top = maximum<T>(top, load(exact_tile + r * kWidth + lane));
    }
    const Mask<T> moves = top_relative > threshold;
    const Mask<T> is_first = threshold == broadcast(-kInfinity<T>);
    // Never down: with scores near 1e38 rounding could ask for it.
    const Vec<T> raised = maximum<T>(top, -minus_old);
    const Vec<T> minus_new = select<T>(moves, -select<T>(is_first, top, raised), minus_old);
    const Mask<T> keeps_gathered = ~moves | is_first;
    const Vec<T> factor = select<T>(keeps_gathered, broadcast(T(1)), exp2(minus_new - minus_old));

    Vec<T> weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> relative = load(tile + r * kWidth + lane);
      const Vec<T> exact = load(exact_tile + r * kWidth + lane) + minus_new;
      // Hidden keys are -inf in both.
      weights[r] = weight_of<T, kRows, kVectors, kBias>(select<T>(moves, exact, relative), bias, r, v);
      store(tile + r * kWidth + lane, weights[r]);
    }
    store(strip.block_sum + lane,
          load(strip.block_sum + lane) * factor + sum_rows<T, kRows>(weights));
    store(strip.sum + lane, load(strip.sum + lane) * factor);
    store(strip.minus_reference + lane, minus_new);
    store(strip.threshold + lane, select<T>(moves, broadcast(T(kThreshold)), threshold));
    for (std::int64_t k = 0; k < keys_before; ++k) {
      T* weight = block_weights + k * kWidth + lane;
      store(weight, load<T>(weight) * factor);
    }
    for (std::int64_t row = 0; row < padded_value_dim; ++row) {
      T* output = strip.output + row * kWidth + lane;
      store(output, load<T>(output) * factor);
    }
  }
}

// One tile: scores, weights, and the block's running sum.
template <class T, int kRows, int kVectors, Bias kBias>
REGARD_INLINE void weights_tile(const T* keys, std::ptrdiff_t key_stride, const T* bias,
                                const Strip<T>& strip, T* block_weights, std::int64_t keys_before,
                                T* exact_tile, std::int64_t head_dim,
                                std::int64_t padded_value_dim) {
  constexpr int kWidth = kVectors * kLanes<T>;
  T* tile = block_weights + keys_before * kWidth;
  Accumulators<T, kRows, kVectors> acc;
  score_tile<T, kRows, kVectors, kBias>(acc, keys, key_stride, bias, strip, strip.minus_reference,
                                        head_dim);
  bool exceeds = false;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    Vec<T> top = acc[0][v];
#pragma GCC unroll 16
    for (int r = 1; r < kRows; ++r) top = maximum<T>(top, acc[r][v]);
    exceeds |= any_greater(top, load(strip.threshold + v * kLanes<T>));
  }
  if (__builtin_expect(exceeds, false)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        store(tile + (r * kVectors + v) * kLanes<T>, acc[r][v]);
    move_references<T, kRows, kVectors, kBias>(keys, key_stride, bias, strip, block_weights,
                                               keys_before, exact_tile, head_dim,
                                               padded_value_dim);
    return;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    Vec<T> weights[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      weights[r] = weight_of<T, kRows, kVectors, kBias>(acc[r][v], bias, r, v);
      store(tile + (r * kVectors + v) * kLanes<T>, weights[r]);
    }
    T* block_sum = strip.block_sum + v * kLanes<T>;
    store(block_sum, load<T>(block_sum) + sum_rows<T, kRows>(weights));
  }
}

// 1 / sum, and 0 for a lane that has seen no key.
template <class T>
REGARD_INLINE Vec<T> reciprocal_of_sum(Vec<T> sum) {
  const Mask<T> saw_nothing = as_bits<T>(sum) == as_bits<T>(broadcast(T(-0.0)));
  return select<T>(saw_nothing, Vec<T>{}, broadcast(T(1)) / sum);
}

// The natural logarithm of the sum of exp(score).
template <class T>
REGARD_INLINE T log_sum_exp(T minus_reference, T sum) {
  return static_cast<T>((__builtin_log2(static_cast<double>(sum)) -
                         static_cast<double>(minus_reference)) *
                        kLn2);
}

}  // namespace
}  // namespace regard
