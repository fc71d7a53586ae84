// scores = query key for keys of 16-bit or 8-bit numbers: keys are transposed in registers, as if
// two or four numbers were one float32, and multiplied from there.
#pragma once

#include "../../simd/lane_parts.hpp"
#include "../../simd/transpose.hpp"
#include "../ahead.hpp"
#include "decode_block.hpp"

namespace regard {
namespace {

template <int kCount, class Body>
REGARD_INLINE void for_parts(Body body) {
  body(Constant<0>{});
  body(Constant<1>{});
  if constexpr (kCount == 4) {
    body(Constant<2>{});
    body(Constant<3>{});
  }
}

// A vector of 16-bit or 8-bit keys: their rows and scores.
template <class From>
struct NarrowKeys {
  const From* rows[kWidth];
  float* scores;
};

// The row in lane `i` of vector `v`: in order, unless the lanes of two vectors are interleaved.
template <class From, int kVectors>
REGARD_INLINE const From* row_in_lane(const NarrowKeys<From> (&keys)[kVectors], int v, int i) {
  const int key = kMet<From> * i + v % kMet<From>;
  return keys[v - v % kMet<From> + key / kWidth].rows[key % kWidth];
}

// Number of vectors of keys whose scores are computed together: with one vector, each addition
// would wait for the previous one. 8-bit keys have the longest latency, and with one or two rows
// there are registers for four vectors.
template <int kRows, class From>
constexpr int kNarrowVectors =
    DecodeShape::kRegisterCount == 16 && sizeof(From) == 1 && kRows <= 2 ? 4 : 2;

// score_keys for narrow numbers, whose squares have two or four dimensions per lane.
template <int kRows, class From, int kVectors>
REGARD_NOINLINE void score_narrow_keys(const NarrowKeys<From> (&keys)[kVectors],
                                       std::int64_t head_dim, const float* queries,
                                       std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kParts = kLaneParts<From>;
  // Prefetches for each of kWidth turns, in quarters of a line. int8 computes for the longest time
  // between two squares, so two fifths of its prefetches are issued while it loads the squares
  // (none on vectors of 16 bytes).
  constexpr int kQuartersAsked = kAheadOfScores<false> * kVectors * kWidth * 4 / kLineBytes;
  constexpr int kWhileLoading = sizeof(From) == 1 ? kQuartersAsked / (2 * kVectors) : 0;
  constexpr int kWhileAdding = kQuartersAsked - kVectors * kWhileLoading;
  Vec<float> acc[kVectors][kRows];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<float>{};
  for (std::int64_t d = 0; d < head_dim; d += kParts * kWidth) {
    AskedLine asked = ahead.go_on();
    Mask<float> dims[kVectors][kWidth];
    for (int v = 0; v < kVectors; ++v) {
      Vec<float> square[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        square[i] = load(reinterpret_cast<const float*>(row_in_lane(keys, v, i) + d));
        ahead.ask_quarters<kWhileLoading>(i, asked);
      }
      transpose<float>(square);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) dims[v][i] = parts_of<From>(as_bits<float>(square[i]));
    }
    for (int i = 0; i < kWidth; ++i) {
      ahead.ask_quarters<kWhileAdding>(i, asked);
      for_parts<kParts>([&](auto part) {
        const std::int64_t column = d + kParts * i + part.value;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v += kMet<From>) {
          Vec<float> key[kMet<From>];
          parts_of_vectors<From, part.value>(dims[v] + i, kWidth, key);
#pragma GCC unroll 2
          for (int u = 0; u < kMet<From>; ++u)
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
              acc[v + u][r] = fma(key[u], broadcast(queries[column * kRows + r]), acc[v + u][r]);
        }
      });
    }
    ahead.stop(asked);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(keys[v].scores + r * score_stride, acc[v][r]);
}

template <int kRows, class From>
REGARD_NOINLINE void score_narrow_steps(const DecodeBlock& block, std::uint32_t steps,
                                        const DecodeWorkspace& work, Ahead& ahead) {
  constexpr int kVectors = kNarrowVectors<kRows, From>;
  for_vectors_of_keys<kVectors>(steps, [&](const int* at, int) {
    NarrowKeys<From> keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      rows_of_keys(block, at[v], keys[v].rows);
      keys[v].scores = work.scores + at[v];
    }
    score_narrow_keys<kRows>(keys, work.padded_head_dim, work.queries, kDecodeBlock, ahead);
  });
}

}  // namespace
}  // namespace regard
