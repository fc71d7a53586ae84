// scores = query key for keys stored in the type of the arithmetic: a square of keys and dimensions
// is transposed in registers and multiplied from there. Nothing interrupts the loads from memory,
// so they are issued evenly. See transposed_scores.hpp for the case in which other costs dominate.
#pragma once

#include "../../simd/transpose.hpp"
#include "../ahead.hpp"
#include "decode_block.hpp"

namespace regard {
namespace {

// Computes scores[row][key] of kLanes keys. Squares of keys and dimensions are transposed in
// registers.
template <int kRows>
REGARD_NOINLINE void score_keys(const float* const* keys, std::int64_t padded_head_dim,
                                const float* queries, float* scores, std::ptrdiff_t score_stride,
                                Ahead& ahead) {
  constexpr int kAsked = kAheadOfScores<false> * kWidth * kWidth / kLineBytes;
  Vec<float> acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = Vec<float>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kWidth) {
    Vec<float> square[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) square[i] = load(keys[i] + d);
    transpose<float>(square);
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        acc[r] = fma(square[i], broadcast(queries[(d + i) * kRows + r]), acc[r]);
#pragma GCC unroll 8
      for (int n = kAsked * i / kWidth; n < kAsked * (i + 1) / kWidth; ++n) ahead.ask(asked);
    }
    ahead.stop(asked);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) store(scores + r * score_stride, acc[r]);
}

REGARD_INLINE void bring_next_line(const float* key) {
  __builtin_prefetch(reinterpret_cast<const char*>(key) + kLineBytes, 0, 3);
}

// A vector of keys, all of which exist, and their scores.
struct KeyVector {
  const float* first;
  float* scores;
};

// score_keys for several vectors of keys. Each sum over dimensions is a dependency chain, and the
// sums of the other keys hide its latency. All squares of a line of each key follow one another:
// the lines of rows that are 4096 bytes apart share one of L1's sets, with room for 8 of them.
template <int kRows, int kTogether>
REGARD_NOINLINE void score_squares(const KeyVector (&keys)[kTogether], std::ptrdiff_t key_stride,
                                   std::int64_t padded_head_dim, const float* queries,
                                   std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kAsked = kAheadOfScores<false> * kWidth * kWidth / kLineBytes;
  constexpr int kLine = kLineBytes / static_cast<int>(sizeof(float));
  Vec<float> acc[kTogether][kRows];
#pragma GCC unroll 4
  for (int v = 0; v < kTogether; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<float>{};
  for (std::int64_t line = 0; line < padded_head_dim; line += kLine) {
    AskedLine asked = ahead.go_on();
    const std::int64_t end = line + kLine < padded_head_dim ? line + kLine : padded_head_dim;
#pragma GCC unroll 4
    for (int v = 0; v < kTogether; ++v)
#pragma GCC unroll 1
      for (std::int64_t d = line; d < end; d += kWidth) {
        const float* const rows = keys[v].first + d;
        Vec<float> square[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) square[i] = load(rows + i * key_stride);
        transpose<float>(square);
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i)
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r)
            acc[v][r] = fma(square[i], broadcast(queries[(d + i) * kRows + r]), acc[v][r]);
#pragma GCC unroll 8
        for (int n = 0; n < kAsked; ++n) ahead.ask(asked);
      }
    ahead.stop(asked);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kTogether; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(keys[v].scores + r * score_stride, acc[v][r]);
}

// Like score_squares, with loads of half vectors that replace shuffles. This needs 32 registers;
// with 16 it was slower. Rows that share a set of L1 are not computed by it, since it would read
// their lines twice.
//
// A step reads half a line of each key. If keys begin at a line (kOnLines), the next line is
// prefetched before the step that needs it, because every second step would otherwise wait for L2.
// If keys do not begin at a line, a step's loads already reach into the next line.
template <int kRows, int kTogether, bool kOnLines>
REGARD_NOINLINE void score_half_squares(const KeyVector (&keys)[kTogether],
                                        std::ptrdiff_t key_stride, std::int64_t padded_head_dim,
                                        const float* queries, std::ptrdiff_t score_stride,
                                        Ahead& ahead) {
  constexpr int kHalf = kWidth / 2;
  constexpr int kAsked = kAheadOfScores<false> * kWidth * kWidth / kLineBytes;
  Vec<float> acc[kTogether][kRows];
#pragma GCC unroll 4
  for (int v = 0; v < kTogether; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<float>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kHalf) {
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 4
    for (int v = 0; v < kTogether; ++v) {
      const float* lower = keys[v].first + d;
      Vec<float> half[kHalf];
#pragma GCC unroll 8
      for (int i = 0; i < kHalf; ++i) {
        // If the compiler kept 16 keys' addresses or two vectors' queries in one register each,
        // most of them would be spilled to the stack.
        if (i % 4 == 0) forget(lower, key_stride, queries);
        const float* row = lower + i % 4 * key_stride;
        half[i] = load_two_halves(row, row + kHalf * key_stride);
        if constexpr (kOnLines) {
          bring_next_line(row);
          bring_next_line(row + kHalf * key_stride);
        }
        if (i % 4 == 3) lower += 4 * key_stride;
      }
      transpose_halves<float>(half);
#pragma GCC unroll 8
      for (int i = 0; i < kHalf; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          acc[v][r] = fma(half[i], broadcast(queries[i * kRows + r]), acc[v][r]);
#pragma GCC unroll 8
        for (int n = kAsked * (v * kHalf + i) / kWidth; n < kAsked * (v * kHalf + i + 1) / kWidth;
             ++n)
          ahead.ask(asked);
      }
    }
    queries += kHalf * kRows;
    ahead.stop(asked);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kTogether; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(keys[v].scores + r * score_stride, acc[v][r]);
}

REGARD_INLINE bool begin_with_lines(const float* keys, std::ptrdiff_t stride) {
  return (reinterpret_cast<std::uintptr_t>(keys) | stride * sizeof(float)) % kLineBytes == 0;
}

template <int kRows>
REGARD_NOINLINE void score_register_steps(const DecodeBlock& block, std::uint32_t steps,
                                          const DecodeWorkspace& work, Ahead& ahead) {
  constexpr int kTogether = kTuning.decode_vectors;
  constexpr bool kReadsHalves = DecodeShape::kRegisterCount == 32;
  const std::ptrdiff_t stride = block.keys.stride;
  const bool one_by_one = kReadsHalves && are_far_apart(stride * std::int64_t{sizeof(float)});
  for_vectors_of_keys<kTogether>(steps, [&](const int* at, int count) {
    if constexpr (kTogether > 1) {
      if (count == kTogether && at[kTogether - 1] + kWidth <= block.count && !one_by_one) {
        KeyVector keys[kTogether];
        for (int v = 0; v < kTogether; ++v)
          keys[v] = {row_of_key<float>(block, at[v]), work.scores + at[v]};
        if constexpr (!kReadsHalves)
          score_squares<kRows>(keys, stride, work.padded_head_dim, work.queries, kDecodeBlock,
                               ahead);
        else if (begin_with_lines(keys[0].first, stride))
          score_half_squares<kRows, kTogether, true>(keys, stride, work.padded_head_dim,
                                                     work.queries, kDecodeBlock, ahead);
        else
          score_half_squares<kRows, kTogether, false>(keys, stride, work.padded_head_dim,
                                                      work.queries, kDecodeBlock, ahead);
        return;
      }
    }
    for (int v = 0; v < count; ++v) {
      const float* keys[kWidth];
      rows_of_keys(block, at[v], keys);
      score_keys<kRows>(keys, work.padded_head_dim, work.queries, work.scores + at[v], kDecodeBlock,
                        ahead);
    }
  });
}

}  // namespace
}  // namespace regard
