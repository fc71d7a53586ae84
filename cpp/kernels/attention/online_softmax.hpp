// Softmax over keys that arrive tile by tile, lane by lane, without a score ever being stored
// (Milakov and Gimelshein 2018; the rare rescale is FlashAttention 4's).
//
// A lane keeps a reference m near the largest score s it has seen (s in log2 units) and
//
//   sum    = sum over its keys of 2^(s - m)            output = sum of 2^(s - m) value
//
// Only when a score exceeds m by more than `kThreshold` does m move, and what was gathered so far is
// rescaled: until then a weight is at most 2^kThreshold, which loses nothing in floating point. A
// lane's first visible score always moves it.
//
// Scores are summed from zero and m is subtracted from the whole. Starting the sum at -m would save
// that subtraction (0.7% of the work at head_dim 64), but a far-away m (a mask of -10000) then costs
// bits at every step, and a key's score would depend on whether a mask stands beside it.
//
// Three states share one float, by IEEE's rules for signed zeros:
//   sum = -0.0   the lane has seen no key: it started there, and a hidden key adds -0.0
//   sum = +0.0   it has seen keys, all with score -inf
//   sum > 0      otherwise; NaN where a score was NaN or +inf
// So a hidden key's weight is -0.0 and a visible one's is never (but in a lane that is NaN), which also
// tells the second product what to leave out. Whether a row saw a key thus follows from visibility and
// not from its scores.
//
// A sink is a key without a value that every query of its head sees first: reference = sink, sum = 1
// (join.hpp).
//
// What moves a lane's reference is that lane's scores alone. All lanes of a tile go through
// `move_references` when one must, and come out with the bits that they would have had.
#pragma once

#include "../../simd/exp2.hpp"
#include "../../simd/tanh.hpp"
#include "merge_chunks.hpp"
#include "../mask_value.hpp"
#include "../micro_kernel.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

// Weights under 2^kNegligible count as 0: beside a sum of about 1 they are nothing, and their products
// with values would be subnormal, which costs a microcode assist of a hundred cycles each (ALiBi over
// 4096 keys took 6.8 times its time; docs/performance.md).
template <class T>
constexpr T kNegligible = sizeof(T) == 4 ? T(-100) : T(-960);

// What is added to the scores of a tile: nothing, finite numbers (or NaN), or also -inf, which hides:
// it is chosen over a score of any value.
enum class Bias { none, adds, hides };

// What a strip keeps of the keys that it has computed in this block, so that a reference that moves
// can rescale it.
template <class T>
struct Gathered {
  T* weights;  // [keys][lanes]
  std::int64_t keys;
  std::int64_t output_rows;  // of strip.output that hold something
};

// Tanh of a stored tile of scores, which come in units of softcap / (2 log2(e)).
template <class T, int kVectorsInAll>
REGARD_NOINLINE void cap_scores(T softcap, T* tile) {
  for (int i = 0; i < kVectorsInAll; ++i)
    store(tile + i * kLanes<T>,
          broadcast(softcap) * tanh_of_log2_units<T>(load(tile + i * kLanes<T>)));
}

// acc = scores of a tile of keys, bias included. `product` is a tile of scores.hpp or int8_scores.hpp,
// `tile` memory for one.
template <class T, int kRows, int kVectors, Bias kBias, class Product>
REGARD_INLINE void score_tile(Accumulators<T, kRows, kVectors>& acc, const Product& product,
                              const T* bias, T softcap, T* tile) {
  product.template multiply<kRows, kVectors>(acc);
  if (__builtin_expect(softcap != T(0), false)) {
    store_tile<T, kRows, kVectors>(acc, tile);
    cap_scores<T, kRows * kVectors>(softcap, tile);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = load<T>(tile + (r * kVectors + v) * kLanes<T>);
  }
  if constexpr (kBias != Bias::none) {
    const Vec<T> minus_infinity = broadcast(-kInfinity<T>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> added = load(bias + (r * kVectors + v) * kLanes<T>);
        acc[r][v] = acc[r][v] + added;
        if constexpr (kBias == Bias::hides)
          acc[r][v] = select<T>(added == minus_infinity, minus_infinity, acc[r][v]);
      }
  }
}

// 2^(score - reference), -0.0 where bias hides.
template <class T, int kVectors, Bias kBias>
REGARD_INLINE Vec<T> weight_of(Vec<T> score, Vec<T> reference, const T* bias, int r, int v,
                               T lowest = kNegligible<T>) {
  Vec<T> weight = exp2(score - reference, lowest);
  if constexpr (kBias == Bias::hides) {
    const Vec<T> added = load(bias + (r * kVectors + v) * kLanes<T>);
    weight = select<T>(added == broadcast(-kInfinity<T>), broadcast(T(-0.0)), weight);
  }
  return weight;
}

// A weight by which a row of int8 is multiplied. A hidden key's stays: its scale may be anything.
template <class T>
REGARD_INLINE Vec<T> scaled_weight(Vec<T> weight, Vec<T> scale) {
  const Mask<T> is_hidden = as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0)));
  return select<T>(is_hidden, weight, weight * scale);
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

// The last tile of the gathered weights holds scores. Moves the reference of every lane whose limit one
// of them exceeds, rescales what those lanes have gathered so far, and leaves the tile's weights.
template <class T, int kRows, int kVectors, Bias kBias>
REGARD_NOINLINE void move_references(const T* bias, const Strip<T>& strip,
                                     const Gathered<T>& gathered) {
  constexpr int kWidth = kVectors * kLanes<T>;
  T* tile = gathered.weights + gathered.keys * kWidth;
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes<T>;
    const Vec<T> old_reference = load(strip.state.reference + lane);
    const Vec<T> old_limit = load(strip.state.limit + lane);
    Vec<T> top = load(tile + lane);
    for (int r = 1; r < kRows; ++r) top = maximum<T>(top, load(tile + r * kWidth + lane));
    const Mask<T> moves = top > old_limit;
    const Mask<T> has_gathered = old_limit > broadcast(-kInfinity<T>);
    const Vec<T> reference = select<T>(moves, top, old_reference);
    const Vec<T> factor = select<T>(moves & has_gathered, exp2(old_reference - reference),
                                    broadcast(T(1)));
    Vec<T> weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      T* at = tile + r * kWidth + lane;
      weights[r] = weight_of<T, kVectors, kBias>(load<T>(at), reference, bias, r, v);
      store(at, weights[r]);
    }
    store(strip.block_sum + lane,
          load(strip.block_sum + lane) * factor + sum_rows<T, kRows>(weights));
    store(strip.state.sum + lane, load(strip.state.sum + lane) * factor);
    store(strip.state.reference + lane, reference);
    store(strip.state.limit + lane,
          select<T>(moves, reference + broadcast(T(kThreshold)), old_limit));
    // A strip's first keys find nothing to rescale.
    if (!any<T>(moves & has_gathered)) continue;
    for (std::int64_t k = 0; k < gathered.keys; ++k) {
      T* weight = gathered.weights + k * kWidth + lane;
      store(weight, load<T>(weight) * factor);
    }
    for (std::int64_t row = 0; row < gathered.output_rows; ++row) {
      T* output = strip.output + row * kWidth + lane;
      store(output, load<T>(output) * factor);
    }
  }
}

// One tile: scores, weights (behind those gathered), and the block's running sum.
template <class T, int kRows, int kVectors, Bias kBias, class Product>
REGARD_INLINE void weights_tile(const Product& product, const T* bias, T softcap,
                                const Strip<T>& strip, const Gathered<T>& gathered) {
  constexpr int kWidth = kVectors * kLanes<T>;
  T* tile = gathered.weights + gathered.keys * kWidth;
  Accumulators<T, kRows, kVectors> acc;
  score_tile<T, kRows, kVectors, kBias>(acc, product, bias, softcap, tile);
  bool exceeds = false;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    Vec<T> top = acc[0][v];
#pragma GCC unroll 16
    for (int r = 1; r < kRows; ++r) top = maximum<T>(top, acc[r][v]);
    exceeds |= any_greater(top, load(strip.state.limit + v * kLanes<T>));
  }
  if (__builtin_expect(exceeds, false)) {
    store_tile<T, kRows, kVectors>(acc, tile);
    move_references<T, kRows, kVectors, kBias>(bias, strip, gathered);
    return;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Vec<T> reference = load(strip.state.reference + v * kLanes<T>);
    Vec<T> weights[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      weights[r] = weight_of<T, kVectors, kBias>(acc[r][v], reference, bias, r, v);
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
REGARD_INLINE T log_sum_exp(T reference, T sum) {
  return static_cast<T>((static_cast<double>(reference) +
                         __builtin_log2(static_cast<double>(sum))) *
                        kLn2);
}

}  // namespace
}  // namespace regard
