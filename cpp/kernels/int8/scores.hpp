// Scores from queries and keys in int8:
//
//   score = query_scale[lane] key_scale[key] (sum over d of query[d][lane] key[key][d]) + mean_score[lane]
//
// The sum is an integer, the same on every target and by either way:
//
//   DotScores    the CPU multiplies and adds four int8 at once (VNNI). It wants one side unsigned: the
//                query's bytes are 128 too large, and the sum begins with -128 times that of the key.
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

REGARD_INLINE Int8Factors factors_of(const AttentionTask& task, const Strip<float>& strip,
                                     std::int64_t key) {
  return {task.int8_keys->scales + key, strip.query_scale, strip.mean_score};
}

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
    const Int8Keys& keys = *task.int8_keys;
    float* to = work.keys;
    for (std::int64_t key = 0; key < round_up(block.count, Shape::kRows); ++key) {
      const std::int8_t* row = keys.rows + (block.begin + key) * keys.row_bytes;
      for (std::int64_t d = 0; d < problem.head_dim; ++d) *to++ = row[d];
    }
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
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
          acc[r][v] = __builtin_convertvector(sums[r][v], Vec<float>);
      factors.apply<kRows, kVectors>(acc, lane);
    }
  };

  static bool copies_keys(const AttentionProblem&) { return true; }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const Strip<float>& strip) {
    pack_byte_queries<Shape>(problem, task, strip);
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
