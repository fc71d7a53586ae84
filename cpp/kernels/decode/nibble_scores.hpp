// scores = query key for keys in groups of four-bit integers (../groups_of_four_bits.hpp), which
// are multiplied as 16-bit integers, two per lane:
//
//   for a vector of keys
//     for a group: 16 bytes of each key, transposed to 4 lanes of all keys
//       for a lane of 4 bytes: numbers 0 and 2, 16 and 18, 1 and 3, 17 and 19, from its first
//         sum += key query (broadcast)     in integers; for a single row, upper halves are not
//                                          shifted but summed separately, times 16, because
//                                          shifts would take longer
//       score += sum * scale, then += sum of the query * minimum
//     score *= the query's step
#pragma once

#include "../../simd/integer_dots.hpp"
#include "../../simd/transpose.hpp"
#include "../ahead.hpp"
#include "decode_block.hpp"

namespace regard {
namespace {

constexpr int kGroupLanes = kGroupBytes / 4;  // 32-bit lanes
constexpr int kPairsOfLane = 4;

// The first number of each pair of a lane, relative to the lane's first number.
constexpr int kFirstOfPair[kPairsOfLane] = {0, 16, 1, 17};

// Computes a row's integers from scaled and rotated numbers. The row is one of `together` rows.
REGARD_NOINLINE void round_decode_query(const float* query, std::int64_t head_dim, int row,
                                        int together, DecodeWorkspace& work) {
  float largest = 0.0f;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    const float magnitude = query[i] < 0.0f ? -query[i] : query[i];
    largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
    if (largest != largest) break;
  }
  const QuerySteps<float> steps = query_steps(largest);
  work.query_steps[row] = steps.step;
  const auto integer = [&](std::int64_t at) {
    if (steps.inverse == 0.0f) return 0;
    return static_cast<std::int32_t>(query[at] * steps.inverse + kRoundsToInteger<float> -
                                     kRoundsToInteger<float>);
  };
  std::int32_t* to = work.query_pairs + row;
  for (std::int64_t group = 0; group < head_dim / kGroupOfFourBits; ++group) {
    const std::int64_t first = group * kGroupOfFourBits;
    std::int32_t sum = 0;
    for (int i = 0; i < kGroupOfFourBits; ++i) sum += integer(first + i);
    work.query_sums[group * together + row] = static_cast<float>(sum);
    for (int lane = 0; lane < kGroupLanes; ++lane)
      for (const int at : kFirstOfPair) {
        const auto lower = static_cast<std::uint32_t>(integer(first + 4 * lane + at)) & 0xffffu;
        const auto upper = static_cast<std::uint32_t>(integer(first + 4 * lane + at + 2)) << 16;
        *to = static_cast<std::int32_t>(lower | upper);
        to += together;
      }
  }
}

// A vector of keys: their first row, and the scales and minimums of their groups. Rows beyond the
// block also belong to a page and are hidden.
struct NibbleKeys {
  const Nibbles* first;
  const float* groups;
  float* scores;
};

template <int kRows, int kVectors>
REGARD_NOINLINE void score_nibble_keys(const NibbleKeys (&keys)[kVectors], std::ptrdiff_t stride,
                                       std::int64_t head_dim, const DecodeWorkspace& work,
                                       Ahead& ahead) {
  // Prefetches for each lane, in quarters of a line. Scales are a fifth of the data.
  constexpr int kQuartersAsked =
      (kAheadOfScores<false> * kVectors * kWidth * 5 + kLineBytes - 1) / kLineBytes;
  constexpr bool kShifts = kRows > 1;
  const std::int32_t* pairs = work.query_pairs;
  const float* sums_of_query = work.query_sums;
  Accumulators<float, kVectors, kRows> acc;
  clear<float, kVectors, kRows>(acc);
  for (std::int64_t group = 0; group < head_dim / kGroupOfFourBits; ++group) {
    Mask<float> sums[kVectors][kRows], sixteens[kVectors][kRows];
    Vec<float> lanes[kVectors][kGroupLanes];  // lane i holds bytes 4 i to 4 i + 3 of the group
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      load_fours_transposed(keys[v].first + group * kGroupBytes, stride, lanes[v]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[v][r] = sixteens[v][r] = Mask<float>{};
    }
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 4
    for (int i = 0; i < kGroupLanes; ++i) {
      ahead.ask_quarters<kQuartersAsked>(i, asked);
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          const Mask<float> bytes = as_bits<float>(lanes[v][i]);
          const Mask<float> two = odd ? upper_bytes(bytes) : bytes;
          const Mask<float> lower = two & 0x000f000f;
          const Mask<float> upper = kShifts ? two >> 4 & 0x000f000f : two & 0x00f000f0;
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const std::int32_t* const query = pairs + 2 * odd * kRows + r;
            add_dot_of_pairs(sums[v][r], lower, Mask<float>{} + query[0]);
            add_dot_of_pairs(kShifts ? sums[v][r] : sixteens[v][r], upper,
                             Mask<float>{} + query[kRows]);
          }
        }
      }
      pairs += kPairsOfLane * kRows;
    }
    ahead.stop(asked);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const Vec<float> scale = load(keys[v].groups + 2 * group * kDecodeBlock);
      const Vec<float> minimum = load(keys[v].groups + (2 * group + 1) * kDecodeBlock);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Mask<float> sum = kShifts ? sums[v][r] : sums[v][r] + (sixteens[v][r] >> 4);
        acc[v][r] = fma(__builtin_convertvector(sum, Vec<float>), scale, acc[v][r]);
        acc[v][r] = fma(broadcast(sums_of_query[r]), minimum, acc[v][r]);
      }
    }
    sums_of_query += kRows;
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      store(keys[v].scores + r * kDecodeBlock, acc[v][r] * broadcast(work.query_steps[r]));
}

template <int kRows>
REGARD_NOINLINE void score_nibble_steps(const DecodeBlock& block, std::uint32_t steps,
                                        const DecodeWorkspace& work, Ahead& ahead) {
  constexpr int kVectors = kRows <= 2 ? 2 : 1;
  for_vectors_of_keys<kVectors>(steps, [&](const int* at, int) {
    NibbleKeys keys[kVectors];
    for (int v = 0; v < kVectors; ++v)
      keys[v] = {row_of_key<Nibbles>(block, at[v]), work.key_groups + at[v], work.scores + at[v]};
    score_nibble_keys<kRows>(keys, block.keys.stride, work.padded_head_dim, work, ahead);
  });
}

}  // namespace
}  // namespace regard
