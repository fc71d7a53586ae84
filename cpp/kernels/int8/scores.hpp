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
// (docs/lab-notes.md).
#pragma once

#include "../../simd/integer_dots.hpp"
#include "../attention/forward_workspace.hpp"
#include "../micro_kernel.hpp"
#include "../strips/lanes.hpp"
#include "keys.hpp"

namespace regard {
namespace {

static_assert(127 * 127 * kMostInt8Dim < 1 << 24, "a float32 holds every sum");

template <class Shape>
struct QuadScores {
  using T = float;
  static constexpr bool kGathers = false;

  struct Product {
    const std::int8_t* keys;
    std::int64_t row_bytes;
    const std::int32_t* corrections;
    const float* queries;
    const float* key_scales;
    const float* query_scale;
    const float* mean_score;

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
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec<float> key_scale = broadcast(key_scales[r]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          const int at = lane + v * kLanes<float>;
          acc[r][v] = fma(__builtin_convertvector(sums[r][v], Vec<float>),
                          key_scale * load(query_scale + at), load(mean_score + at));
        }
      }
    }
  };

  static bool copies_keys(const AttentionProblem&) { return true; }

  // Rotates queries and scales them by their largest magnitude, as keys are (keys.hpp):
  // queries[d / 4][kStripLanes] = four adjacent integers, the first in the lowest bits. The bytes
  // are 128 too large. The score with the mean of the keys is that of the unrounded query. A query
  // that contains NaN or inf has a factor of NaN, so all its scores are NaN.
  REGARD_NOINLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                    const ForwardStrip<float>& strip) {
    constexpr int kPitch = Shape::kStripLanes;
    pack_rows<Shape>(problem, problem.query, task.query, strip, problem.head_dim, strip.queries,
                     Identity{});
    const Vec<float> group = broadcast(static_cast<float>(rotated_together(problem.head_dim)));
    const Vec<float> round = broadcast(kRoundsToInteger<float> + 128);
    const float* mean = task.int8_keys->mean;
    for (int lane = 0; lane < strip.vectors * kLanes<float>; lane += kLanes<float>) {
      float* const queries = strip.queries + lane;
      Vec<float> score{};
      for (std::int64_t d = 0; d < problem.head_dim; ++d)
        score = fma(load<float>(queries + d * kPitch), broadcast(mean[d]), score);
      rotate_shares(queries, kPitch, problem.head_dim);
      const Int8Steps steps = steps_of(queries, kPitch, problem.head_dim);
      store(strip.query_scale + lane, steps.step * group);
      store(strip.mean_score + lane, score);
      for (std::int64_t d = 0; d < problem.head_dim; d += 4) {
        Mask<float> bytes{};
        for (int i = 0; i < 4 && d + i < problem.head_dim; ++i) {
          const Vec<float> rounded =
              load<float>(queries + (d + i) * kPitch) * steps.inverse + round;
          bytes |= (as_bits<float>(rounded) & 255) << (8 * i);
        }
        store(queries + d / 4 * kPitch, as_value<float>(bytes));
      }
    }
  }

  REGARD_INLINE void provide_keys(const AttentionProblem&, const AttentionTask&,
                                  const ForwardWorkspace<float>&, ForwardBlock<float>&) {}

  template <class Tile>
  REGARD_INLINE Product product(const Tile& tile, const AttentionProblem&,
                                const AttentionTask& task, const ForwardStrip<float>& strip,
                                const ForwardBlock<float>& block) {
    const Int8Keys& keys = *task.int8_keys;
    const std::int64_t key = block.begin + tile.begin;
    return {keys.rows + key * keys.row_bytes,
            keys.row_bytes,
            keys.corrections + key,
            strip.queries,
            keys.scales + key,
            strip.query_scale,
            strip.mean_score};
  }
};

}  // namespace
}  // namespace regard
