// scores = query key with rows in lanes, where they fill a vector: a key's number is broadcast from where it lies
// and serves all rows. Scores are transposed then instead of keys, which have head_dim times as many numbers.
//
//   for as many keys as a vector has lanes
//     for a dimension
//       scores[key][rows] += key (broadcast) * queries
//     scores[rows][keys]                                               transposed in registers
//
// Keys of fewer bits would have to be widened first, which takes as long as transposing them.
#pragma once

#include "../../simd/transpose.hpp"
#include "../micro_kernel.hpp"
#include "ahead.hpp"
#include "block.hpp"

namespace regard {
namespace {

template <class T>
REGARD_NOINLINE void score_rows_in_lanes(const T* const (&keys)[kLanes<T>], std::int64_t padded_head_dim,
                                         const T* queries, T* scores, std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kWidth = kLanes<T>;
  // Of the lines that kTogether dimensions of the keys take, in quarters.
  constexpr int kTogether = 4;
  static_assert(kWidth % kTogether == 0, "padded_head_dim is a multiple of kWidth");
  constexpr int kQuartersAsked = kAheadOfScores * kWidth * kTogether * static_cast<int>(sizeof(T)) / kLineBytes;
  Vec<T> acc[kWidth];
  for (int i = 0; i < kWidth; ++i) acc[i] = Vec<T>{};
  AskedLine asked = ahead.go_on();
#pragma GCC unroll 1
  for (int d = 0; d < padded_head_dim; d += kTogether) {
    ahead.ask_quarters<kQuartersAsked>(d / kTogether, asked);
#pragma GCC unroll 4
    for (int j = 0; j < kTogether; ++j) {
      const Vec<T> rows = load(queries + (d + j) * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < kWidth; ++i) acc[i] = fma(broadcast(keys[i][d + j]), rows, acc[i]);
    }
  }
  ahead.stop(asked);
  transpose<T>(acc);
#pragma GCC unroll 8
  for (int row = 0; row < kWidth; ++row) store(scores + row * score_stride, acc[row]);
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void score_steps_by_rows(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                         const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  static_assert(kStep % kLanes<T> == 0, "a step is whole vectors");
  for_steps<Shape>(steps, [&](int begin) {
    const T* step = static_cast<const T*>(block.keys[begin / kStep]);
    const int last = block.count - begin - 1;
    for (int k = 0; k < kStep; k += kLanes<T>) {
      const T* keys[kLanes<T>];
      // Those beyond the block repeat its last key: they are hidden.
      for (int i = 0; i < kLanes<T>; ++i) keys[i] = step + (k + i < last ? k + i : last) * block.key_stride;
      score_rows_in_lanes<T>(keys, work.padded_head_dim, work.queries, work.scores + begin + k, kBlock, ahead);
    }
  });
}

}  // namespace
}  // namespace regard
