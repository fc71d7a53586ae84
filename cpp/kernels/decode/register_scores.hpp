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
template <class T, int kRows>
REGARD_NOINLINE void score_keys(const T* const* keys, std::int64_t padded_head_dim,
                                const T* queries, T* scores, std::ptrdiff_t score_stride,
                                Ahead& ahead) {
  constexpr int kAsked = kAheadOfScores<false> * kLanes<T> * kLanes<T> *
                         static_cast<int>(sizeof(T)) / (4 * kLineBytes);
  Vec<T> acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = Vec<T>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kLanes<T>) {
    Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) square[i] = load(keys[i] + d);
    transpose<T>(square);
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        acc[r] = fma(square[i], broadcast(queries[(d + i) * kRows + r]), acc[r]);
#pragma GCC unroll 8
      for (int n = kAsked * i / kLanes<T>; n < kAsked * (i + 1) / kLanes<T>; ++n) ahead.ask(asked);
    }
    ahead.stop(asked);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) store(scores + r * score_stride, acc[r]);
}

template <class T>
REGARD_INLINE void bring_next_line(const T* key) {
  __builtin_prefetch(reinterpret_cast<const char*>(key) + kLineBytes, 0, 3);
}

// A vector of keys, all of which exist, and their scores.
template <class T>
struct KeyVector {
  const T* first;
  T* scores;
};

// score_keys for several vectors of keys. Each sum over dimensions is a dependency chain, and the
// sums of the other keys hide its latency.
template <class T, int kRows, int kTogether>
REGARD_NOINLINE void score_squares(const KeyVector<T> (&keys)[kTogether], std::ptrdiff_t key_stride,
                                   std::int64_t padded_head_dim, const T* queries,
                                   std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kAsked = kAheadOfScores<false> * kLanes<T> * kLanes<T> *
                         static_cast<int>(sizeof(T)) / (4 * kLineBytes);
  Vec<T> acc[kTogether][kRows];
#pragma GCC unroll 4
  for (int v = 0; v < kTogether; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<T>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kLanes<T>) {
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 4
    for (int v = 0; v < kTogether; ++v) {
      const T* const rows = keys[v].first + d;
      Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<T>; ++i) square[i] = load(rows + i * key_stride);
      transpose<T>(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<T>; ++i)
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
// with 16 it was slower.
//
// A step reads half a line of each key. If keys begin at a line (kOnLines), the next line is
// prefetched before the step that needs it, because every second step would otherwise wait for L2.
// If keys do not begin at a line, a step's loads already reach into the next line.
template <class T, int kRows, int kTogether, bool kOnLines>
REGARD_NOINLINE void score_half_squares(const KeyVector<T> (&keys)[kTogether],
                                        std::ptrdiff_t key_stride, std::int64_t padded_head_dim,
                                        const T* queries, std::ptrdiff_t score_stride,
                                        Ahead& ahead) {
  constexpr int kHalf = kLanes<T> / 2;
  constexpr int kAsked = kAheadOfScores<false> * kLanes<T> * kLanes<T> *
                         static_cast<int>(sizeof(T)) / (4 * kLineBytes);
  Vec<T> acc[kTogether][kRows];
#pragma GCC unroll 4
  for (int v = 0; v < kTogether; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<T>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kHalf) {
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 4
    for (int v = 0; v < kTogether; ++v) {
      const T* lower = keys[v].first + d;
      Vec<T> half[kHalf];
#pragma GCC unroll 8
      for (int i = 0; i < kHalf; ++i) {
        // If the compiler kept 16 keys' addresses or two vectors' queries in one register each,
        // most of them would be spilled to the stack.
        if (i % 4 == 0) forget(lower, key_stride, queries);
        const T* row = lower + i % 4 * key_stride;
        half[i] = load_two_halves(row, row + kHalf * key_stride);
        if constexpr (kOnLines) {
          bring_next_line(row);
          bring_next_line(row + kHalf * key_stride);
        }
        if (i % 4 == 3) lower += 4 * key_stride;
      }
      transpose_halves<T>(half);
#pragma GCC unroll 8
      for (int i = 0; i < kHalf; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          acc[v][r] = fma(half[i], broadcast(queries[i * kRows + r]), acc[v][r]);
#pragma GCC unroll 8
        for (int n = kAsked * (v * kHalf + i) / kLanes<T>;
             n < kAsked * (v * kHalf + i + 1) / kLanes<T>; ++n)
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

template <class T>
REGARD_INLINE bool begin_with_lines(const T* keys, std::ptrdiff_t stride) {
  return (reinterpret_cast<std::uintptr_t>(keys) | stride * sizeof(T)) % kLineBytes == 0;
}

template <class Shape, int kRows, class T = typename Shape::Element>
REGARD_NOINLINE void score_register_steps(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                          const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  const auto score_one = [&](int begin, int k) {
    const T* keys[kLanes<T>];
    rows_of_keys(block, begin, k, keys);
    score_keys<T, kRows>(keys, work.padded_head_dim, work.queries, work.scores + begin + k, kBlock,
                         ahead);
  };
  constexpr int kTogether =
      kRows == 1 ? Shape::kTarget.decode_vectors_of_a_row : Shape::kTarget.decode_vectors_of_rows;
  [[maybe_unused]] KeyVector<T> keys[kTogether];
  [[maybe_unused]] int waiting = 0;
  for_steps<Shape>(steps, [&](int begin) {
    for (int k = 0; k < kStep; k += kLanes<T>) {
      if constexpr (kTogether > 1) {
        if (begin + k + kLanes<T> <= block.count) {
          const auto* const step = static_cast<const T*>(block.keys[begin / kStep]);
          keys[waiting++] = {step + k * block.key_stride, work.scores + begin + k};
          if (waiting < kTogether) continue;
          waiting = 0;
          if constexpr (Shape::kRegisterCount < 32) {
            score_squares<T, kRows>(keys, block.key_stride, work.padded_head_dim, work.queries,
                                    kBlock, ahead);
            continue;
          }
          const auto score = [&](auto on_lines) {
            score_half_squares<T, kRows, kTogether, on_lines.value>(
                keys, block.key_stride, work.padded_head_dim, work.queries, kBlock, ahead);
          };
          if (begin_with_lines(keys[0].first, block.key_stride))
            score(Constant<1>{});
          else
            score(Constant<0>{});
          continue;
        }
      }
      score_one(begin, k);
    }
  });
  for (int i = 0; i < waiting; ++i) {
    const int at = static_cast<int>(keys[i].scores - work.scores);
    score_one(at / kStep * kStep, at % kStep);
  }
}

}  // namespace
}  // namespace regard
