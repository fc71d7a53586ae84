// scores = query key from a copy of the keys with keys in lanes:
//
//   for as many vectors of keys as a tile has       from the rows in place
//     for a square of keys and dimensions           transposed to [dimension][key] in L1
//     for the rows of a tile                        a tile of rows x vectors stays in registers
//       for a dimension
//         scores += query (broadcast) * keys
//
// Without the copy, the square would occupy half of 16 registers, and a broadcast query would serve
// only one vector.
#pragma once

#include "../../simd/lane_parts.hpp"
#include "../../simd/transpose.hpp"
#include "../micro_kernel.hpp"
#include "../ahead.hpp"
#include "decode_block.hpp"
#include "narrow_scores.hpp"

namespace regard {
namespace {

// Number of lines prefetched per square of kLanes keys and dimensions, and the part of them that is
// prefetched while the square is transposed. The others follow during the products, which take
// longer.
template <class From>
constexpr int kAskedOfSquare =
    kAheadOfScores<false> * kWidth * kWidth * static_cast<int>(sizeof(From)) / (4 * kLineBytes);
template <class From>
constexpr int kAskedWhileTransposing = kAskedOfSquare<From> * 3 / 10;

// Computes transposed[dimension][key] of kLanes keys, whose rows are padded to whole vectors.
template <class From>
REGARD_INLINE void transpose_keys(const From* const* keys, std::int64_t padded_head_dim,
                                  float* transposed, std::ptrdiff_t stride, Ahead& ahead) {
  constexpr int kAsked = kAskedWhileTransposing<From>;
  for (std::int64_t d = 0; d < padded_head_dim; d += kWidth) {
    AskedLine asked = ahead.go_on();
    Vec<float> square[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) square[i] = load_as<float>(keys[i] + d);
    transpose<float>(square);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      store(transposed + (d + i) * stride, square[i]);
#pragma GCC unroll 8
      for (int n = kAsked * i / kWidth; n < kAsked * (i + 1) / kWidth; ++n) ahead.ask(asked);
    }
    ahead.stop(asked);
  }
}

// The same for integers, times kByteOnTop. Four dimensions per lane are transposed together.
REGARD_INLINE void transpose_keys(const std::int8_t* const* keys, std::int64_t padded_head_dim,
                                  float* transposed, std::ptrdiff_t stride, Ahead&) {
  constexpr int kParts = kLaneParts<std::int8_t>;
  for (std::int64_t d = 0; d < padded_head_dim; d += kParts * kWidth) {
    Vec<float> square[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) square[i] = load(reinterpret_cast<const float*>(keys[i] + d));
    transpose<float>(square);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      const Mask<float> parts = parts_of<std::int8_t>(as_bits<float>(square[i]));
      for_parts<kParts>([&](auto part) {
        store(transposed + (d + kParts * i + part.value) * stride,
              part_of<std::int8_t, part.value>(parts));
      });
    }
  }
}

// Computes scores[row][key] for kTileRows of kRows rows from `row` on, and the vectors of keys at
// `at`.
template <class From, int kRows, int kTileRows, int kVectors>
REGARD_NOINLINE void score_transposed(int row, const int* at, const DecodeWorkspace& work,
                                      Ahead& ahead) {
  constexpr int kAskedOfRows =
      (kAskedOfSquare<From> - kAskedWhileTransposing<From>)*kVectors * kTileRows / kRows;
  constexpr int kQuartersAsked = (4 * kAskedOfRows + kWidth - 1) / kWidth;
  const float *const transposed = work.transposed, *const queries = work.queries + row;
  float* const scores = work.scores + row * kDecodeBlock;
  Accumulators<float, kTileRows, kVectors> acc;
  clear<float, kTileRows, kVectors>(acc);
  AskedLine asked = ahead.go_on();
  // Not unrolled: the compiler would load the vectors of several turns before the first product and
  // spill most of them to the stack.
#pragma GCC unroll 1
  for (std::int64_t d = 0; d < work.padded_head_dim; ++d) {
    ahead.ask_quarters<kQuartersAsked>(d, asked);
    Vec<float> keys[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) keys[v] = load(transposed + (d * kVectors + v) * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = fma(keys[v], broadcast(queries[d * kRows + r]), acc[r][v]);
  }
  ahead.stop(asked);
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(scores + at[v] + r * kDecodeBlock, acc[r][v]);
}

template <int kRows, class From>
REGARD_NOINLINE void score_transposed_steps(const DecodeBlock& block, std::uint32_t steps,
                                            const DecodeWorkspace& work, Ahead& ahead) {
  constexpr int kVectors = DecodeShape::kVectors,
                kTileRows = kRows < DecodeShape::kRows ? kRows : DecodeShape::kRows;
  static_assert(kRows % kTileRows == 0, "rows are whole tiles");
  for_vectors_of_keys<kVectors>(steps, [&](const int* at, int count) {
    const auto score = [&](auto vectors, const int* first) {
      constexpr int kTogether = decltype(vectors)::value;
      for (int v = 0; v < kTogether; ++v) {
        const From* keys[kWidth];
        rows_of_keys(block, first[v], keys);
        transpose_keys(keys, work.padded_head_dim, work.transposed + v * kWidth, kTogether * kWidth,
                       ahead);
      }
      for (int row = 0; row < kRows; row += kTileRows)
        score_transposed<From, kRows, kTileRows, kTogether>(row, first, work, ahead);
    };
    if (count == kVectors) return score(Constant<kVectors>{}, at);
    for (int v = 0; v < count; ++v) score(Constant<1>{}, at + v);
  });
}

}  // namespace
}  // namespace regard
