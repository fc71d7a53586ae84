// Scores from queries and keys in int8:
//
//   score = query_scale[lane] key_scale[key] (sum over d of query[d][lane] key[key][d]) + mean_score[lane]
//
// The sum is an integer, the same on every target and in each way:
//
//   DotScores    the CPU multiplies and adds four int8 at once (VNNI). It wants one side unsigned: the
//                query's bytes are 128 too large, and the sum begins with -128 times that of the key.
//   PairScores   every x86 CPU multiplies two int16 at once and adds the products (pmaddwd).
//   FloatScores  float32 holds the integers exactly, their products and sums too: up to kMostInt8Dim
//                dimensions a sum is at most 127 * 127 * 1024 < 2^24.
#pragma once

#include "queries.hpp"
#include "../micro_kernel.hpp"

namespace regard {
namespace {

static_assert(127 * 127 * kMostInt8Dim < 1 << 24, "a float32 holds every sum");

// Beside a tile's integer sums: the factors of its keys, and those of the lanes.
struct Int8Factors {
  const float* key_scales;
  const float* query_scale;
  const float* mean_score;

  // `first_lane` is the strip's lane of acc's first.
  template <int kRows, int kVectors>
  REGARD_MEMBER void apply(Accumulators<float, kRows, kVectors>& acc, int first_lane) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec<float> key_scale = broadcast(key_scales[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int lane = first_lane + v * kLanes<float>;
        acc[r][v] = fma(acc[r][v], key_scale * load(query_scale + lane), load(mean_score + lane));
      }
    }
  }
};

// What multiplies pairs: x86's instruction. With AVX2, whose registers a tile fills, it reads queries from memory.
#if defined(REGARD_X86_V4)
#define REGARD_PAIRS
REGARD_INLINE Mask<float> sums_of_pairs(Mask<float> a, const float* b) {
  return reinterpret_cast<Mask<float>>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(a), _mm512_loadu_si512(b)));
}
#elif defined(REGARD_X86_V3)
#define REGARD_PAIRS
REGARD_INLINE Mask<float> sums_of_pairs(Mask<float> a, const float* b) {
  Mask<float> sums;
  asm("vpmaddwd %2, %1, %0" : "=x"(sums) : "x"(a), "m"(*reinterpret_cast<const Mask<float>*>(b)));
  return sums;
}
#elif defined(REGARD_SSE2)
#define REGARD_PAIRS
REGARD_INLINE Mask<float> sums_of_pairs(Mask<float> a, const float* b) {
  return reinterpret_cast<Mask<float>>(_mm_madd_epi16(
      reinterpret_cast<__m128i>(a), _mm_loadu_si128(reinterpret_cast<const __m128i*>(b))));
}
#endif

REGARD_INLINE Int8Factors factors_of(const AttentionTask& task, const Strip<float>& strip,
                                     std::int64_t key) {
  return {task.int8_keys->scales + key, strip.query_scale, strip.mean_score};
}

// The integers as scores.
template <int kRows, int kVectors>
REGARD_INLINE void scores_of(const Mask<float> (&sums)[kRows][kVectors], const Int8Factors& factors, int lane,
                             Accumulators<float, kRows, kVectors>& acc) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = __builtin_convertvector(sums[r][v], Vec<float>);
  factors.apply<kRows, kVectors>(acc, lane);
}

// Rows of `columns` elements each, of a block's keys.
template <class To>
REGARD_INLINE void expand_keys(const Int8Keys& keys, const KeyBlock<float>& block, std::int64_t rows,
                               std::int64_t columns, To* to) {
  for (std::int64_t key = 0; key < rows; ++key, to += columns) {
    const std::int8_t* row = keys.rows + (block.begin + key) * keys.row_bytes;
    for (std::int64_t d = 0; d < columns; ++d) to[d] = row[d];
  }
}

#ifndef REGARD_PAIRS

template <class Shape>
struct FloatScores {
  using T = float;

  struct Tile {
    const float* keys;
    const float* queries;
    std::int64_t head_dim;
    Int8Factors factors;

    template <int kRows, int kVectors, int kStripVectors>
    REGARD_MEMBER void multiply(Accumulators<float, kRows, kVectors>& acc, int lane) const {
      clear<float, kRows, kVectors>(acc);
      multiply_rows<float, kRows, kVectors>(acc, keys, head_dim, queries + lane,
                                            kStripVectors * kLanes<float>, head_dim);
      factors.apply<kRows, kVectors>(acc, lane);
    }
  };

  static bool copies_keys(const AttentionProblem&) { return true; }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const Strip<float>& strip) {
    pack_integer_queries<Shape>(problem, task, strip);
  }

  REGARD_NOINLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                    const Workspace<float>& work, KeyBlock<float>& block) {
    if (block.keys) return;
    expand_keys(*task.int8_keys, block, round_up(block.count, Shape::kRows), problem.head_dim, work.keys);
    block.keys = work.keys;
  }

  REGARD_INLINE Tile whole_tile(const AttentionProblem& problem, const AttentionTask& task,
                                const Strip<float>& strip, const KeyBlock<float>& block,
                                std::int64_t k) {
    return {block.keys + k * problem.head_dim, strip.queries, problem.head_dim,
            factors_of(task, strip, block.begin + k)};
  }

  REGARD_INLINE Tile tile(const AttentionProblem& problem, const AttentionTask& task,
                          const Strip<float>& strip, const KeyBlock<float>& block, std::int64_t k) {
    return whole_tile(problem, task, strip, block, k);
  }
};

#else

template <class Shape>
struct PairScores {
  using T = float;
  typedef std::int16_t MayAlias __attribute__((may_alias));

  struct Tile {
    const MayAlias* keys;
    std::int64_t columns;  // a row's, an even number
    const float* queries;
    Int8Factors factors;

    template <int kRows, int kVectors, int kStripVectors>
    REGARD_MEMBER void multiply(Accumulators<float, kRows, kVectors>& acc, int lane) const {
      Mask<float> sums[kRows][kVectors]{};
      const float* right = queries + lane;
#pragma GCC unroll 2
      for (std::int64_t d = 0; d < columns; d += 2, right += kStripVectors * kLanes<float>) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          std::int32_t two;
          __builtin_memcpy(&two, keys + r * columns + d, sizeof two);
          const Mask<float> key = Mask<float>{} + two;
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v)
            sums[r][v] += sums_of_pairs(key, right + v * kLanes<float>);
        }
      }
      scores_of<kRows, kVectors>(sums, factors, lane, acc);
    }
  };

  static bool copies_keys(const AttentionProblem&) { return true; }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const Strip<float>& strip) {
    pack_parts_of_queries<Shape, 2>(problem, task, strip);
  }

  REGARD_NOINLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                    const Workspace<float>& work, KeyBlock<float>& block) {
    if (block.keys) return;
    expand_keys(*task.int8_keys, block, round_up(block.count, Shape::kRows), columns_of(problem),
                reinterpret_cast<MayAlias*>(work.keys));
    block.keys = work.keys;
  }

  REGARD_INLINE Tile whole_tile(const AttentionProblem& problem, const AttentionTask& task,
                                const Strip<float>& strip, const KeyBlock<float>& block,
                                std::int64_t k) {
    const std::int64_t columns = columns_of(problem);
    return {reinterpret_cast<const MayAlias*>(block.keys) + k * columns, columns, strip.queries,
            factors_of(task, strip, block.begin + k)};
  }

  REGARD_INLINE Tile tile(const AttentionProblem& problem, const AttentionTask& task,
                          const Strip<float>& strip, const KeyBlock<float>& block, std::int64_t k) {
    return whole_tile(problem, task, strip, block, k);
  }

 private:
  // Two of them take no more memory than one float32.
  REGARD_INLINE std::int64_t columns_of(const AttentionProblem& problem) { return round_up(problem.head_dim, 2); }
};

#endif

// What the CPU must have beyond the target's features: the instruction is written out, so that nothing
// else is compiled for such a CPU.
#if defined(REGARD_X86_V4)
constexpr const char* kDotFeature = "avx512_vnni";
#define REGARD_DOT "vpdpbusd %2, %1, %0"
#elif defined(REGARD_X86_V3)
constexpr const char* kDotFeature = "avx_vnni";
#define REGARD_DOT "%{vex%} vpdpbusd %2, %1, %0"
#endif

#ifdef REGARD_DOT

// sum[lane] += the four products of unsigned bytes of a and signed bytes of b.
REGARD_INLINE void add_products(Mask<float>& sum, Mask<float> a, Mask<float> b) {
  asm(REGARD_DOT : "+v"(sum) : "v"(a), "v"(b));
}

template <class Shape>
struct DotScores {
  using T = float;

  struct Tile {
    const std::int8_t* keys;
    std::int64_t row_bytes;
    const std::int32_t* corrections;
    const float* queries;
    Int8Factors factors;

    template <int kRows, int kVectors, int kStripVectors>
    REGARD_MEMBER void multiply(Accumulators<float, kRows, kVectors>& acc, int lane) const {
      Mask<float> sums[kRows][kVectors];
      const std::int8_t* rows[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        rows[r] = keys + r * row_bytes;
        const Mask<float> correction = Mask<float>{} + corrections[r];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = correction;
      }
      const float* right = queries + lane;
#pragma GCC unroll 2
      for (std::int64_t d = 0; d < row_bytes; d += 4, right += kStripVectors * kLanes<float>) {
        Mask<float> query[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          query[v] = as_bits<float>(load(right + v * kLanes<float>));
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          std::int32_t four;
          __builtin_memcpy(&four, rows[r] + d, sizeof four);
          const Mask<float> key = Mask<float>{} + four;
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) add_products(sums[r][v], query[v], key);
        }
      }
      scores_of<kRows, kVectors>(sums, factors, lane, acc);
    }
  };

  static bool copies_keys(const AttentionProblem&) { return true; }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const Strip<float>& strip) {
    pack_parts_of_queries<Shape, 4>(problem, task, strip);
  }

  REGARD_INLINE void provide_keys(const AttentionProblem&, const AttentionTask&,
                                  const Workspace<float>&, KeyBlock<float>&) {}

  REGARD_INLINE Tile whole_tile(const AttentionProblem&, const AttentionTask& task,
                                const Strip<float>& strip, const KeyBlock<float>& block,
                                std::int64_t k) {
    const Int8Keys& keys = *task.int8_keys;
    const std::int64_t key = block.begin + k;
    return {keys.rows + key * keys.row_bytes, keys.row_bytes, keys.corrections + key, strip.queries,
            factors_of(task, strip, key)};
  }

  REGARD_INLINE Tile tile(const AttentionProblem& problem, const AttentionTask& task,
                          const Strip<float>& strip, const KeyBlock<float>& block, std::int64_t k) {
    return whole_tile(problem, task, strip, block, k);
  }
};

#endif

}  // namespace
}  // namespace regard
