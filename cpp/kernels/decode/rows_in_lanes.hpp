// scores = query key with rows in lanes, used if the rows fill a vector or half of one. Scores are
// transposed instead of keys, which have head_dim times as many numbers.
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
template <int kRows, class From>
constexpr bool kPutsRowsInLanes = DecodeShape::kRegisterCount == 16 && kRows > 2 &&
                                  sizeof(From) == sizeof(float) &&
                                  (kRows == kWidth || 2 * kRows == kWidth);

[[maybe_unused]] REGARD_NOINLINE void score_rows_in_lanes(const float* const (&keys)[kWidth],
                                                          std::int64_t padded_head_dim,
                                                          const float* queries, float* scores,
                                                          std::ptrdiff_t score_stride,
                                                          Ahead& ahead) {
  // Fraction of the lines of kTogether dimensions of the keys, in quarters.
  constexpr int kTogether = 4;
  static_assert(kWidth % kTogether == 0, "padded_head_dim is a multiple of kWidth");
  constexpr int kQuartersAsked =
      kAheadOfScores<true> * kWidth * kTogether * static_cast<int>(sizeof(float)) / kLineBytes;
  Vec<float> acc[kWidth];
#pragma GCC unroll 8
  for (int i = 0; i < kWidth; ++i) acc[i] = Vec<float>{};
  AskedLine asked = ahead.go_on();
#pragma GCC unroll 1
  for (std::int64_t d = 0; d < padded_head_dim; d += kTogether) {
    ahead.ask_quarters<kQuartersAsked>(d / kTogether, asked);
#pragma GCC unroll 4
    for (int j = 0; j < kTogether; ++j) {
      const Vec<float> rows = load(queries + (d + j) * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < kWidth; ++i) acc[i] = fma(broadcast(keys[i][d + j]), rows, acc[i]);
    }
  }
  ahead.stop(asked);
  transpose<float>(acc);
#pragma GCC unroll 8
  for (int row = 0; row < kWidth; ++row) store(scores + row * score_stride, acc[row]);
}

// Broadcasts the element at kPlace of each half to every lane of that half.
template <int kPlace, std::size_t... kLane>
REGARD_INLINE Vec<float> broadcast_in_halves(Vec<float> halves, std::index_sequence<kLane...>) {
  constexpr int kHalf = kWidth / 2;
  return __builtin_shufflevector(halves, halves,
                                 (static_cast<int>(kLane) / kHalf * kHalf + kPlace)...);
}

// For rows that fill half a vector. The lower halves of the scores belong to one vector of keys,
// the upper halves to another.
[[maybe_unused]] REGARD_NOINLINE void score_rows_in_halves(
    const float* const (&lower)[kWidth], const float* const (&upper)[kWidth],
    std::int64_t padded_head_dim, const float* queries, float* lower_scores, float* upper_scores,
    std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kHalf = kWidth / 2;
  // Fraction of the lines of kHalf dimensions of two vectors of keys.
  constexpr int kAsked = kAheadOfScores<true> * 2 * kWidth * kHalf *
                         static_cast<int>(sizeof(float)) / (4 * kLineBytes);
  Vec<float> acc[kWidth];
#pragma GCC unroll 8
  for (int i = 0; i < kWidth; ++i) acc[i] = Vec<float>{};
  AskedLine asked = ahead.go_on();
#pragma GCC unroll 1
  for (std::int64_t d = 0; d < padded_head_dim; d += kHalf) {
    Vec<float> rows[kHalf];
#pragma GCC unroll 4
    for (int j = 0; j < kHalf; ++j) {
      const float* of_dimension = queries + (d + j) * kHalf;
      rows[j] = load_two_halves(of_dimension, of_dimension);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kWidth; ++i) {
      const Vec<float> keys = load_two_halves(lower[i] + d, upper[i] + d);
      for_parts<kHalf>([&](auto j) {
        acc[i] = fma(broadcast_in_halves<j.value>(keys, std::make_index_sequence<kWidth>()),
                     rows[j.value], acc[i]);
      });
#pragma GCC unroll 8
      for (int n = kAsked * i / kWidth; n < kAsked * (i + 1) / kWidth; ++n) ahead.ask(asked);
    }
  }
  ahead.stop(asked);
  transpose<float>(acc);
#pragma GCC unroll 8
  for (int row = 0; row < kHalf; ++row) {
    store(lower_scores + row * score_stride, acc[row]);
    store(upper_scores + row * score_stride, acc[kHalf + row]);
  }
}

template <int kRows>
REGARD_NOINLINE void score_steps_by_rows(const DecodeBlock& block, std::uint32_t steps,
                                         const DecodeWorkspace& work, Ahead& ahead) {
  constexpr int kVectors = kWidth / kRows;  // vectors of keys, computed together
  for_vectors_of_keys<kVectors>(steps, [&](const int* at, int) {
    const float* keys[kVectors][kWidth];
    for (int v = 0; v < kVectors; ++v) rows_of_keys(block, at[v], keys[v]);
    float* const scores = work.scores + at[0];
    if constexpr (kVectors == 1)
      score_rows_in_lanes(keys[0], work.padded_head_dim, work.queries, scores, kDecodeBlock, ahead);
    else
      score_rows_in_halves(keys[0], keys[1], work.padded_head_dim, work.queries, scores,
                           work.scores + at[1], kDecodeBlock, ahead);
  });
}

}  // namespace
}  // namespace regard
