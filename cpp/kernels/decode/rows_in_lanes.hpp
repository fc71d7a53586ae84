// scores = query key with rows in lanes, used if the rows fill a vector or half of one. A key's
// number is broadcast from memory and serves all rows. The scores are then transposed instead of
// the keys, which have head_dim times as many numbers.
//
//   for as many keys as a vector has lanes             twice as many, if rows fill half a vector
//     for a dimension
//       scores[key][rows] += key (broadcast) * queries     of two keys, each in its half
//     scores[rows][keys]                               transposed in registers
//
// Keys of fewer bits would have to be widened first, which takes as long as transposing them.
#pragma once

#include "../../simd/lane_parts.hpp"
#include "../../simd/transpose.hpp"
#include "../micro_kernel.hpp"
#include "../ahead.hpp"
#include "decode_block.hpp"

namespace regard {
namespace {

// With 32 registers, or with one or two rows, keys are transposed in registers and multiplied from
// there.
template <class Shape, int kRows, class From, class T = typename Shape::Element>
constexpr bool kPutsRowsInLanes = Shape::kRegisterCount == 16 && kRows > 2 &&
                                  sizeof(From) == sizeof(T) &&
                                  (kRows == kLanes<T> || 2 * kRows == kLanes<T>);

template <class T>
REGARD_NOINLINE void score_rows_in_lanes(const T* const (&keys)[kLanes<T>],
                                         std::int64_t padded_head_dim, const T* queries, T* scores,
                                         std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kWidth = kLanes<T>;
  // Fraction of the lines of kTogether dimensions of the keys, in quarters.
  constexpr int kTogether = 4;
  static_assert(kWidth % kTogether == 0, "padded_head_dim is a multiple of kWidth");
  constexpr int kQuartersAsked =
      kAheadOfScores<true> * kWidth * kTogether * static_cast<int>(sizeof(T)) / kLineBytes;
  Vec<T> acc[kWidth];
#pragma GCC unroll 8
  for (int i = 0; i < kWidth; ++i) acc[i] = Vec<T>{};
  AskedLine asked = ahead.go_on();
#pragma GCC unroll 1
  for (std::int64_t d = 0; d < padded_head_dim; d += kTogether) {
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

// Broadcasts the element at kPlace of each half to every lane of that half.
template <int kPlace, class T, std::size_t... kLane>
REGARD_INLINE Vec<T> broadcast_in_halves(Vec<T> halves, std::index_sequence<kLane...>) {
  constexpr int kHalf = kLanes<T> / 2;
  return __builtin_shufflevector(halves, halves,
                                 (static_cast<int>(kLane) / kHalf * kHalf + kPlace)...);
}

// For rows that fill half a vector. The lower halves of the scores belong to one vector of keys,
// the upper halves to another.
template <class T>
REGARD_NOINLINE void score_rows_in_halves(const T* const (&lower)[kLanes<T>],
                                          const T* const (&upper)[kLanes<T>],
                                          std::int64_t padded_head_dim, const T* queries,
                                          T* lower_scores, T* upper_scores,
                                          std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kWidth = kLanes<T>, kHalf = kWidth / 2;
  // Fraction of the lines of kHalf dimensions of two vectors of keys.
  constexpr int kAsked =
      kAheadOfScores<true> * 2 * kWidth * kHalf * static_cast<int>(sizeof(T)) / (4 * kLineBytes);
  Vec<T> acc[kWidth];
#pragma GCC unroll 8
  for (int i = 0; i < kWidth; ++i) acc[i] = Vec<T>{};
  AskedLine asked = ahead.go_on();
#pragma GCC unroll 1
  for (std::int64_t d = 0; d < padded_head_dim; d += kHalf) {
    Vec<T> rows[kHalf];
#pragma GCC unroll 4
    for (int j = 0; j < kHalf; ++j) {
      const T* of_dimension = queries + (d + j) * kHalf;
      rows[j] = load_two_halves(of_dimension, of_dimension);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kWidth; ++i) {
      const Vec<T> keys = load_two_halves(lower[i] + d, upper[i] + d);
      for_parts<kHalf>([&](auto j) {
        acc[i] = fma(broadcast_in_halves<j.value, T>(keys, std::make_index_sequence<kWidth>()),
                     rows[j.value], acc[i]);
      });
#pragma GCC unroll 8
      for (int n = kAsked * i / kWidth; n < kAsked * (i + 1) / kWidth; ++n) ahead.ask(asked);
    }
  }
  ahead.stop(asked);
  transpose<T>(acc);
#pragma GCC unroll 8
  for (int row = 0; row < kHalf; ++row) {
    store(lower_scores + row * score_stride, acc[row]);
    store(upper_scores + row * score_stride, acc[kHalf + row]);
  }
}

template <class Shape, int kRows, class T = typename Shape::Element>
REGARD_NOINLINE void score_steps_by_rows(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                         const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  static_assert(kStep % kLanes<T> == 0, "a step is whole vectors");
  constexpr int kVectors = kLanes<T> / kRows;  // vectors of keys, computed together
  const T* keys[kVectors][kLanes<T>];
  T* scores[kVectors];
  int waiting = 0;
  const auto score = [&] {
    const int other = waiting - 1;
    if constexpr (kVectors == 1)
      score_rows_in_lanes<T>(keys[0], work.padded_head_dim, work.queries, scores[0], kBlock, ahead);
    else
      score_rows_in_halves<T>(keys[0], keys[other], work.padded_head_dim, work.queries, scores[0],
                              scores[other], kBlock, ahead);
    waiting = 0;
  };
  for_steps<Shape>(steps, [&](int begin) {
    for (int k = 0; k < kStep; k += kLanes<T>) {
      rows_of_keys(block, begin, k, keys[waiting]);
      scores[waiting++] = work.scores + begin + k;
      if (waiting == kVectors) score();
    }
  });
  if (waiting > 0) score();
}

}  // namespace
}  // namespace regard
