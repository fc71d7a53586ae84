// Scores from queries and keys in int8, on CPUs that multiply and add four integers at once (VNNI):
//
//   score = query_scale[lane] key_scale[key] (sum over d of query[d][lane] key[key][d])
//           + mean_score[lane]
//
// The sum is an integer. The instruction requires one unsigned operand, so the query's bytes are
// 128 too large, and the sum starts with -128 times the sum of the key.
//
// Other CPUs do not round and compute in float32: products of integers would take as many
// operations there as products of float32 numbers, in addition to the rounding
// (docs/lab-notes/precision.md).
#pragma once

#include "../../simd/int8_quads.hpp"
#include "../micro_kernel.hpp"
#include "queries.hpp"

namespace regard {
namespace {

static_assert(127 * 127 * kMostInt8Dim < 1 << 24, "a float32 holds every sum");

// The factors that convert a tile's integer sums to scores: factors of keys and of lanes.
struct Int8Factors {
  const float* key_scales;
  const float* query_scale;
  const float* mean_score;

  // `first_lane` is the strip's lane that corresponds to the first lane of acc.
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

REGARD_INLINE Int8Factors factors_of(const AttentionTask& task, const ForwardStrip<float>& strip,
                                     std::int64_t key) {
  return {task.int8_keys->scales + key, strip.query_scale, strip.mean_score};
}

// Converts the integer sums to scores.
template <int kRows, int kVectors>
REGARD_INLINE void scores_of(const Mask<float> (&sums)[kRows][kVectors], const Int8Factors& factors,
                             int lane, Accumulators<float, kRows, kVectors>& acc) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = __builtin_convertvector(sums[r][v], Vec<float>);
  factors.apply<kRows, kVectors>(acc, lane);
}

template <class Shape>
struct QuadScores {
  using T = float;

  struct Product {
    const std::int8_t* keys;
    std::int64_t row_bytes;
    const std::int32_t* corrections;
    const float* queries;
    Int8Factors factors;

    template <int kRows, int kVectors>
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
      for (std::int64_t d = 0; d < row_bytes; d += 4, right += Shape::kStripLanes) {
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
          for (int v = 0; v < kVectors; ++v) add_dot_of_quads(sums[r][v], query[v], key);
        }
      }
      scores_of<kRows, kVectors>(sums, factors, lane, acc);
    }
  };

  static bool copies_keys(const AttentionProblem&) { return true; }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardStrip<float>& strip) {
    pack_bytes_of_queries<Shape>(problem, task, strip);
  }

  REGARD_INLINE void provide_keys(const AttentionProblem&, const AttentionTask&,
                                  const ForwardWorkspace<float>&, ForwardBlock<float>&) {}

  template <class Tile>
  REGARD_INLINE Product product(const Tile& tile, const AttentionProblem&,
                                const AttentionTask& task, const ForwardStrip<float>& strip,
                                const ForwardBlock<float>& block) {
    const Int8Keys& keys = *task.int8_keys;
    const std::int64_t key = block.begin + tile.begin;
    return {keys.rows + key * keys.row_bytes, keys.row_bytes, keys.corrections + key, strip.queries,
            factors_of(task, strip, key)};
  }
};

}  // namespace
}  // namespace regard
