// output += weights value for values in groups of four-bit integers:
//
//   output = sum over keys of (weight scale) integer + sum over keys of weight minimum
//
// for each group, added as in the forward kernel (../attention/plain_values.hpp). kLanes bytes hold
// two vectors of dimensions, 16 apart: one vector in the lower halves of the bytes, the other in
// the upper halves.
#pragma once

#include "../ahead.hpp"
#include "decode_block.hpp"
#include "weights.hpp"

namespace regard {
namespace {

// Number of pieces of kLanes bytes in a group.
constexpr int kPiecesOfGroup = kGroupBytes / kWidth;

// Calls body(row, first, last) for each stretch of contiguous keys, which are the keys of
// consecutive steps. `row` points to key `first`.
template <class Body>
REGARD_INLINE void for_stretches(const DecodeBlock& block, int begin, int end, std::uint32_t steps,
                                 Body body) {
  while (steps != 0) {
    const int step = __builtin_ctz(steps);
    const auto* row = static_cast<const Nibbles*>(block.values.first[step]);
    const Nibbles* next = row;
    int after = step;
    do {
      steps &= steps - 1;
      next += kDecodeStep * block.values.stride;
      ++after;
    } while (steps >> after & 1 && block.values.first[after] == next);
    const int first = begin > step * kDecodeStep ? begin : step * kDecodeStep;
    const int last = end < after * kDecodeStep ? end : after * kDecodeStep;
    if (first < last) body(row + (first - step * kDecodeStep) * block.values.stride, first, last);
  }
}

// For one row's weights and kGroups groups starting at `group`, computes weights times scales, and
// the sums of weights times minimums, for the keys of [begin, end). Each sum has as many partial
// sums as a vector has lanes.
template <int kGroups>
REGARD_NOINLINE void scale_by_groups(int row, std::int64_t group, int begin, int end,
                                     std::uint32_t steps, const DecodeWorkspace& work) {
  const std::int64_t at = row * (work.padded_value_dim / kGroupOfFourBits) + group;
  const float* const weights = work.scores + row * kDecodeBlock;
  const float* const scales = work.value_groups + 2 * group * kDecodeBlock;
  float* const to = work.group_weights + at * kDecodeBlock;
  Vec<float> sums[kGroups]{};
  for_steps(steps, [&](int step) {
#pragma GCC unroll 4
    for (int k = step; k < step + kDecodeStep; k += kWidth) {
      Vec<float> weight = load<float>(weights + k);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g)
        store(to + g * kDecodeBlock + k, weight * load(scales + 2 * g * kDecodeBlock + k));
      if (k < begin || k + kWidth > end)
        for (int i = 0; i < kWidth; ++i) weight[i] = k + i >= begin && k + i < end ? weight[i] : 0;
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g)
        sums[g] = fma(weight, load(scales + (2 * g + 1) * kDecodeBlock + k), sums[g]);
    }
  });
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) work.group_sums[at + g] = sum_lanes<kWidth>(sums[g])[0];
}

// output[row][pieces] += the sums over the steps' keys, for kTogether rows and kPieces pieces of
// groups starting at `piece`. Only the first rows prefetch lines.
template <int kTogether, int kPieces, bool kAsks>
REGARD_NOINLINE void add_pieces(const DecodeBlock& block, int row, std::int64_t piece, int begin,
                                int end, std::uint32_t steps, const DecodeWorkspace& work,
                                Ahead& ahead) {
  // Prefetches one line for every kKeysOfLine keys, which fill a line with these pieces. With
  // scales, rows have 5 bytes for every 4 bytes of integers, and values prefetch 6 of 8 lines.
  constexpr unsigned kKeysOfLine =
      kPieces * kWidth < kLineBytes ? kLineBytes / (kPieces * kWidth) : 1;
  const std::ptrdiff_t stride = block.values.stride;
  const std::int64_t groups = work.padded_value_dim / kGroupOfFourBits;
  const std::int64_t first_group = piece / kPiecesOfGroup;
  const float* const weights = work.group_weights + (row * groups + first_group) * kDecodeBlock;
  const std::ptrdiff_t row_stride = groups * kDecodeBlock;
  Vec<float> acc[kTogether][kPieces][2];
#pragma GCC unroll 8
  for (int r = 0; r < kTogether; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) acc[r][p][0] = acc[r][p][1] = Vec<float>{};
  for_stretches(block, begin, end, steps, [&](const Nibbles* values, int first, int last) {
    values += piece * kWidth;
    AskedLine asked = ahead.go_on();
    for (int k = first; k < last; ++k, values += stride) {
      if (kAsks && static_cast<unsigned>(k) % kKeysOfLine == 0) ahead.ask(asked);
#pragma GCC unroll 4
      for (int p = 0; p < kPieces; ++p) {
        const TwoVectors<float> value = integers_of<float>(values + p * kWidth);
#pragma GCC unroll 8
        for (int r = 0; r < kTogether; ++r) {
          const Vec<float> weight =
              broadcast(weights[r * row_stride + p / kPiecesOfGroup * kDecodeBlock + k]);
          acc[r][p][0] = fma(value.lower, weight, acc[r][p][0]);
          acc[r][p][1] = fma(value.upper, weight, acc[r][p][1]);
        }
      }
    }
    ahead.stop(asked);
  });
#pragma GCC unroll 8
  for (int r = 0; r < kTogether; ++r) {
    if (row + r >= work.rows) break;
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) {
      const std::int64_t group = (piece + p) / kPiecesOfGroup, at = (piece + p) % kPiecesOfGroup;
      const Vec<float> least = broadcast(work.group_sums[(row + r) * groups + group]);
      float* to =
          work.output + (row + r) * work.padded_value_dim + group * kGroupOfFourBits + at * kWidth;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half, to += kGroupBytes) {
        const Vec<float> sum = work.is_fresh ? acc[r][p][half] : load<float>(to) + acc[r][p][half];
        store(to, sum + least);
      }
    }
  }
}

// About ten sums stay in registers.
template <int kRows>
REGARD_NOINLINE void add_nibble_values(const DecodeBlock& block, int begin, int end,
                                       std::uint32_t steps, const DecodeWorkspace& work,
                                       Ahead& ahead) {
  constexpr int kTogether = kRows > 4 ? 4 : kRows;
  constexpr int kPieces = kTogether == 1 ? 4 : kTogether == 2 ? 2 : 1;
  const std::int64_t groups = work.padded_value_dim / kGroupOfFourBits;
  for (int row = 0; row < work.rows; ++row) {
    std::int64_t group = 0;
    for (; group + 4 <= groups; group += 4) scale_by_groups<4>(row, group, begin, end, steps, work);
    for (; group + 2 <= groups; group += 2) scale_by_groups<2>(row, group, begin, end, steps, work);
    if (group < groups) scale_by_groups<1>(row, group, begin, end, steps, work);
  }
  const std::int64_t pieces = work.padded_value_dim / (2 * kWidth);
  std::int64_t piece = 0;
  const auto add = [&](auto together) {
    for (; pieces - piece >= together.value; piece += together.value)
      for (int row = 0; row < kRows; row += kTogether) {
        if (row == 0)
          add_pieces<kTogether, together.value, true>(block, row, piece, begin, end, steps, work,
                                                      ahead);
        else
          add_pieces<kTogether, together.value, false>(block, row, piece, begin, end, steps, work,
                                                       ahead);
      }
  };
  add(Constant<kPieces>{});
  if constexpr (kPieces > 2) add(Constant<2>{});
  if constexpr (kPieces > 1) add(Constant<1>{});
}

}  // namespace
}  // namespace regard
