// scores = query key for the rows of a decode: over keys as they lie (any element type, any row stride, in
// pages) or, where columns are apart or do not fill vectors, over copies.
#pragma once

#include "../../simd/lane_parts.hpp"
#include "ahead.hpp"
#include "block.hpp"
#include "for_rows.hpp"
#include "weights.hpp"
#include "../attention/strip_setup.hpp"

namespace regard {
namespace {

// Integers that are read in place come multiplied by kByteOnTop, and queries make up for it. Returns a factor
// for the products where queries are so small that they would become subnormal, and 1 otherwise.
template <class T>
REGARD_NOINLINE T undo_byte_on_top(T* query, std::int64_t head_dim) {
  constexpr T kSmall = T(0x1p-64f), kFactor = T(1 / kByteOnTop);
  bool is_small = true;
  for (std::int64_t i = 0; i < head_dim; ++i) is_small &= query[i] < kSmall && query[i] > -kSmall;
  if (is_small) return kFactor;
  for (std::int64_t i = 0; i < head_dim; ++i) query[i] *= kFactor;
  return T(1);
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void pack_decode_queries(const AttentionProblem& problem, const AttentionTask& task,
                                         DecodeWorkspace<T>& work) {
  const bool rotates = rotates_queries(problem);
  const T scale = query_scale<T>(problem);
  const std::int64_t group = problem.heads / problem.kv_heads;
  const int together = for_rows(work.rows, [](auto rows) { return decltype(rows)::value; });
  for (std::int64_t i = 0; i < together * work.padded_head_dim; ++i) work.queries[i] = T(0);
  for (int row = 0; row < work.rows; ++row) {
    T* to = work.query;
    const std::int64_t first = (task.row_begin + row) / group * problem.query.row_stride +
                               (task.row_begin + row) % group * problem.query.head_stride;
    with_input_element<T>(problem.query.element, [&](auto element) {
      using From = typename decltype(element)::Type;
      const From* from = static_cast<const From*>(task.query) + first;
      for (std::int64_t i = 0; i < problem.head_dim; ++i)
        to[i] = static_cast<T>(widen(from[i * problem.query.column_stride]));
    });
    if (rotates) rotate_row(to, problem.head_dim);
    for (std::int64_t i = 0; i < problem.head_dim; ++i) to[i] *= scale;
    const bool undoes = rotates && decodes_keys_in_place<T>(problem);
    work.score_factor[row] = undoes ? undo_byte_on_top(to, problem.head_dim) : T(1);
    for (std::int64_t i = 0; i < problem.head_dim; ++i) work.queries[i * together + row] = to[i];
  }
}

// scores[row][key] of kLanes keys: squares of keys and dimensions, transposed in registers.
template <class T, int kRows, class From>
REGARD_NOINLINE void score_keys(const From* const* keys, std::int64_t padded_head_dim,
                                const T* queries, T* scores, std::ptrdiff_t score_stride,
                                Ahead& ahead) {
  constexpr int kAsked =
      kAheadOfScores * kLanes<T> * kLanes<T> * static_cast<int>(sizeof(From)) / (4 * kLineBytes);
  Vec<T> acc[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) acc[r] = Vec<T>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kLanes<T>) {
    Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) square[i] = load_as<T>(keys[i] + d);
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

// A vector of keys that all exist, and their scores.
template <class T>
struct KeyVector {
  const T* first;
  T* scores;
};

// score_keys for two vectors of keys whose stored type is T: no sum waits for itself, and loads of half
// vectors do what takes a shuffle there. It needs 32 registers; with 16 it was slower.
//
// A step reads half a line of each key. Where keys begin with a line (kOnLines), the next line is asked for
// ahead of the step that needs it, or every second step would wait for L2. Elsewhere a step's loads reach
// into the next line by themselves.
template <class T, int kRows, bool kOnLines>
REGARD_NOINLINE void score_two_vectors(const KeyVector<T> (&keys)[2], std::ptrdiff_t key_stride,
                                       std::int64_t padded_head_dim, const T* queries,
                                       std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kHalf = kLanes<T> / 2;
  constexpr int kAsked =
      kAheadOfScores * kLanes<T> * kLanes<T> * static_cast<int>(sizeof(T)) / (4 * kLineBytes);
  Vec<T> acc[2][kRows];
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<T>{};
  for (std::int64_t d = 0; d < padded_head_dim; d += kHalf) {
    AskedLine asked = ahead.go_on();
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const T* lower = keys[v].first + d;
      Vec<T> half[kHalf];
#pragma GCC unroll 8
      for (int i = 0; i < kHalf; ++i) {
        // If the compiler kept 16 keys' addresses or two vectors' queries in a register each, most would
        // end up on the stack.
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
        for (int n = kAsked * (v * kHalf + i) / kLanes<T>; n < kAsked * (v * kHalf + i + 1) / kLanes<T>; ++n)
          ahead.ask(asked);
      }
    }
    queries += kHalf * kRows;
    ahead.stop(asked);
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(keys[v].scores + r * score_stride, acc[v][r]);
}

template <int kCount, class Body>
REGARD_INLINE void for_parts(Body body) {
  body(Constant<0>{});
  body(Constant<1>{});
  if constexpr (kCount == 4) {
    body(Constant<2>{});
    body(Constant<3>{});
  }
}

// A vector of keys of 16 or 8 bits: their rows and scores.
template <class From>
struct NarrowKeys {
  const From* rows[kLanes<float>];
  float* scores;
};

// score_keys for narrow numbers, whose squares have two or four dimensions a lane. It takes two vectors of
// keys at a time, since the sum of one would wait for itself.
template <int kRows, class From>
REGARD_NOINLINE void score_narrow_keys(const NarrowKeys<From> (&keys)[2], std::int64_t head_dim,
                                       const float* queries, std::ptrdiff_t score_stride,
                                       Ahead& ahead) {
  constexpr int kWidth = kLanes<float>, kParts = kLaneParts<From>;
  // In the quarters of a line for each of kWidth turns: of int8, which computes longest between two squares,
  // two fifths while it loads them (none on vectors of 16 bytes).
  constexpr int kQuartersAsked = kAheadOfScores * 2 * kWidth * 4 / kLineBytes;
  constexpr int kWhileLoading = sizeof(From) == 1 ? kQuartersAsked / 4 : 0;
  constexpr int kWhileAdding = kQuartersAsked - 2 * kWhileLoading;
  Vec<float> acc[2][kRows];
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) acc[v][r] = Vec<float>{};
  for (std::int64_t d = 0; d < head_dim; d += kParts * kWidth) {
    AskedLine asked = ahead.go_on();
    Mask<float> dims[2][kWidth];
    for (int v = 0; v < 2; ++v) {
      Vec<float> square[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        square[i] = load(reinterpret_cast<const float*>(keys[v].rows[i] + d));
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
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const Vec<float> key = part_of<From, part.value>(dims[v][i]);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r)
            acc[v][r] = fma(key, broadcast(queries[column * kRows + r]), acc[v][r]);
        }
      });
    }
    ahead.stop(asked);
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(keys[v].scores + r * score_stride, acc[v][r]);
}

template <class Shape, int kRows, class From>
REGARD_NOINLINE void score_narrow_steps(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                        const DecodeWorkspace<float>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  NarrowKeys<From> keys[2];
  int waiting = 0;
  const auto score = [&] {
    score_narrow_keys<kRows>(keys, work.padded_head_dim, work.queries, kBlock, ahead);
    waiting = 0;
  };
  for_steps<Shape>(steps, [&](int begin) {
    const From* first = static_cast<const From*>(block.keys[begin / kStep]);
    const int last = block.count - begin - 1;
    for (int k = 0; k < kStep; k += kLanes<float>) {
      NarrowKeys<From>& vector = keys[waiting++];
      vector.scores = work.scores + begin + k;
      // Lanes beyond the block repeat its last key: they are hidden.
      for (int i = 0; i < kLanes<float>; ++i)
        vector.rows[i] = first + (k + i < last ? k + i : last) * block.key_stride;
      if (waiting == 2) score();
    }
  });
  if (waiting == 1) {
    keys[1] = keys[0];
    score();
  }
}

template <class T>
REGARD_INLINE bool begin_with_lines(const T* keys, std::ptrdiff_t stride) {
  return (reinterpret_cast<std::uintptr_t>(keys) | stride * sizeof(T)) % kLineBytes == 0;
}

template <class Shape, int kRows, class From, class T = typename Shape::Element>
REGARD_NOINLINE void score_plain_steps(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                       const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  const auto score_one = [&](const From* step, int begin, int k) {
    // Lanes beyond the block repeat its last key: they are hidden.
    const int last = block.count - begin - 1;
    const From* keys[kLanes<T>];
    for (int i = 0; i < kLanes<T>; ++i)
      keys[i] = step + (k + i < last ? k + i : last) * block.key_stride;
    score_keys<T, kRows>(keys, work.padded_head_dim, work.queries, work.scores + begin + k, kBlock,
                         ahead);
  };
  constexpr bool kInTwos = kVectorBytes == 64 && sizeof(T) == sizeof(From);
  [[maybe_unused]] KeyVector<T> keys[2];
  [[maybe_unused]] int waiting = 0;
  for_steps<Shape>(steps, [&](int begin) {
    const From* step = static_cast<const From*>(block.keys[begin / kStep]);
    for (int k = 0; k < kStep; k += kLanes<T>) {
      if constexpr (kInTwos) {
        if (begin + k + kLanes<T> <= block.count) {
          keys[waiting++] = {step + k * block.key_stride, work.scores + begin + k};
          if (waiting < 2) continue;
          const auto score_two = [&](auto on_lines) {
            score_two_vectors<T, kRows, on_lines.value>(keys, block.key_stride, work.padded_head_dim,
                                                        work.queries, kBlock, ahead);
          };
          if (begin_with_lines(keys[0].first, block.key_stride))
            score_two(Constant<1>{});
          else
            score_two(Constant<0>{});
          waiting = 0;
          continue;
        }
      }
      score_one(step, begin, k);
    }
  });
  if constexpr (kInTwos) {
    if (waiting == 1) {
      const int begin = static_cast<int>(keys[0].scores - work.scores);
      score_one(keys[0].first, begin, 0);
    }
  }
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void score_steps(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                 const DecodeWorkspace<T>& work, Ahead& ahead) {
  for_rows(work.rows, [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    if constexpr (sizeof(T) == 4) {
      // Always a whole number of squares: others are copied.
      if (block.key_element == Element::int8)
        return score_narrow_steps<Shape, kRows, std::int8_t>(block, steps, work, ahead);
    }
    with_input_element<T>(block.key_element, [&](auto element) {
      using From = typename decltype(element)::Type;
      if constexpr (sizeof(T) == 4 && sizeof(From) == 2) {
        if (work.padded_head_dim % (kLaneParts<From> * kLanes<T>) == 0)
          return score_narrow_steps<Shape, kRows, From>(block, steps, work, ahead);
      }
      score_plain_steps<Shape, kRows, From>(block, steps, work, ahead);
    });
  });
}

}  // namespace
}  // namespace regard
