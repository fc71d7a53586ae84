// Softmax over keys that arrive tile by tile, without a score ever being stored: a tile's products to scores
// (score_rule.hpp) and on to weights, and the strip's state with them (softmax_state.hpp).
//
// Scores are summed from zero and the reference is subtracted from the whole. Starting the sum at minus the
// reference would save that subtraction (0.7% of the work at head_dim 64), but a far-away reference (a mask
// of -10000) then costs bits at every step, and a key's score would depend on whether a mask stands beside
// it.
//
// All lanes of a tile go through `move_references` when one must, and come out with the bits that they would
// have had.
#pragma once

#include "../micro_kernel.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

// What a strip keeps of the keys that it has computed in this block, so that a reference that moves
// can rescale it.
template <class T>
struct Gathered {
  T* weights;  // [keys][lanes]
  std::int64_t keys;
  std::int64_t output_rows;  // of strip.output that hold something
};

// Apart, so that tiles without a cap keep their registers.
template <class T>
REGARD_NOINLINE void cap_scores(T softcap, T* tile, int vectors_in_all) {
  for (int i = 0; i < vectors_in_all; ++i)
    store(tile + i * kLanes<T>, capped<T>(load(tile + i * kLanes<T>), softcap));
}

// acc = scores of a tile of keys, bias included, for kVectors of the strip's kStripVectors, from its lane `lane` on.
// `product` is a tile of plain_scores.hpp or int8/scores.hpp, `tile` is memory for one.
template <class T, int kRows, int kVectors, int kStripVectors, Bias kBias, class Product>
REGARD_INLINE void score_tile(Accumulators<T, kRows, kVectors>& acc, const Product& product,
                              const T* bias, T softcap, T* tile, int lane) {
  product.template multiply<kRows, kVectors, kStripVectors>(acc, lane);
  if (__builtin_expect(softcap != T(0), false)) {
    store_tile<T, kRows, kVectors>(acc, tile);
    cap_scores(softcap, tile, kRows * kVectors);
    load_tile<T, kRows, kVectors>(acc, tile);
  }
  if constexpr (kBias != Bias::none) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] =
            with_added<T, kBias>(acc[r][v], load(bias + (r * kStripVectors + v) * kLanes<T> + lane));
  }
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
    Vec<T> top = load(tile + lane);
    for (int r = 1; r < kRows; ++r) top = maximum<T>(top, load(tile + r * kWidth + lane));
    const MovedReference<T> moved = move_reference<T>(top, load(strip.state.reference + lane),
                                                      load(strip.state.limit + lane));
    const Vec<T> factor = moved.factor;
    Vec<T> weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      T* at = tile + r * kWidth + lane;
      weights[r] = weight_of<T, kBias>(load<T>(at), moved.reference, bias, r * kWidth + lane);
      store(at, weights[r]);
    }
    store(strip.block_sum + lane, load(strip.block_sum + lane) * factor + sum_rows(weights));
    store(strip.state.sum + lane, load(strip.state.sum + lane) * factor);
    store(strip.state.reference + lane, moved.reference);
    store(strip.state.limit + lane, moved.limit);
    // A strip's first keys find nothing to rescale.
    if (!any<T>(moved.rescales)) continue;
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

// One tile: scores, weights (after those gathered), and the block's running sum. The strip's vectors outside
// [kFirst, kEnd) see none of the keys.
template <class T, int kRows, int kStripVectors, Bias kBias, int kFirst = 0, int kEnd = kStripVectors, class Product>
REGARD_INLINE void weights_tile(const Product& product, const T* bias, T softcap,
                                const Strip<T>& strip, const Gathered<T>& gathered) {
  constexpr int kWidth = kStripVectors * kLanes<T>, kVectors = kEnd - kFirst, kFirstLane = kFirst * kLanes<T>;
  T* tile = gathered.weights + gathered.keys * kWidth;
  Accumulators<T, kRows, kVectors> acc;
  score_tile<T, kRows, kVectors, kStripVectors, kBias>(acc, product, bias, softcap, tile, kFirstLane);
  const auto fill_others = [&](T value) {
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kStripVectors; ++v)
        if (v < kFirst || v >= kEnd) store(tile + r * kWidth + v * kLanes<T>, broadcast(value));
  };
  bool exceeds = false;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    Vec<T> top = acc[0][v];
#pragma GCC unroll 16
    for (int r = 1; r < kRows; ++r) top = maximum<T>(top, acc[r][v]);
    exceeds |= any_greater(top, load(strip.state.limit + kFirstLane + v * kLanes<T>));
  }
  if (__builtin_expect(exceeds, false)) {
    fill_others(-kInfinity<T>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        store(tile + r * kWidth + kFirstLane + v * kLanes<T>, acc[r][v]);
    move_references<T, kRows, kStripVectors, kBias>(bias, strip, gathered);
    return;
  }
  fill_others(T(-0.0));
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int lane = kFirstLane + v * kLanes<T>;
    const Vec<T> reference = load(strip.state.reference + lane);
    Vec<T> weights[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      weights[r] = weight_of<T, kBias>(acc[r][v], reference, bias, r * kWidth + lane);
      store(tile + r * kWidth + lane, weights[r]);
    }
    T* block_sum = strip.block_sum + lane;
    store(block_sum, load<T>(block_sum) + sum_rows(weights));
  }
}

}  // namespace
}  // namespace regard
