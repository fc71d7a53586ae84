// Scores as products of queries and keys in bfloat16:
//
//   score = scale (sum over pairs of dimensions of dot_pairs)
//
// Queries and keys are rounded as they are, and the scale multiplies the sum: arrays that are
// stored in bfloat16 lose nothing. Pairs of keys of that type are read where they lie.
#pragma once

#include "../../simd/bfloat16_pairs.hpp"
#include "../attention/forward_block.hpp"
#include "../strips/lanes.hpp"

namespace regard {
namespace {

// A row of pairs, as words of 32 bits.
constexpr std::int64_t pairs_in(std::int64_t columns) { return (columns + 1) / 2; }

// `Dot` is one of ../../simd/bfloat16_pairs.hpp.
template <class Shape, class Dot>
struct PairScores {
  using T = float;

  struct Product {
    const char* keys;
    std::ptrdiff_t row_bytes;
    const float* queries;
    std::int64_t pairs;
    float scale;

    template <int kRows, int kVectors, int kStripVectors>
    REGARD_MEMBER void multiply(Accumulators<float, kRows, kVectors>& acc, int lane) const {
      clear<float, kRows, kVectors>(acc);
      const char* rows[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) rows[r] = keys + r * row_bytes;
      const float* right = queries + lane;
      // Two steps at once would put sums on the stack.
#pragma GCC unroll 1
      for (std::int64_t i = 0; i < pairs; ++i, right += kStripVectors * kLanes<float>) {
        Vec<float> query[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) query[v] = load(right + v * kLanes<float>);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          std::int32_t pair;
          __builtin_memcpy(&pair, rows[r] + i * 4, sizeof pair);
          const Vec<float> key = as_value<float>(Mask<float>{} + pair);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) acc[r][v] = Dot::add(acc[r][v], query[v], key);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = acc[r][v] * broadcast(scale);
    }
  };

  static bool copies_keys(const AttentionProblem& problem) {
    const Operand& key = problem.key;
    const std::int64_t bytes = key.row_stride * 2;
    return key.element != Element::bfloat16 || key.column_stride != 1 ||
           problem.head_dim % 2 != 0 || bytes >= kFarRowBytes || bytes <= -kFarRowBytes;
  }

  // strip.queries[d / 2][lane] = a pair.
  REGARD_NOINLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                    const ForwardStrip<float>& strip) {
    pack_rows<Shape>(problem, problem.query, task.query, strip, problem.head_dim, strip.queries,
                     Identity{});
    const int lanes = strip.vectors * kLanes<float>;
    for (std::int64_t d = 0; d < problem.head_dim; d += 2)
      for (int lane = 0; lane < lanes; lane += kLanes<float>) {
        const float* const from = strip.queries + d * lanes + lane;
        const Vec<float> high = d + 1 < problem.head_dim ? load(from + lanes) : Vec<float>{};
        store(strip.queries + d / 2 * lanes + lane, pairs_of(load(from), high));
      }
  }

  REGARD_NOINLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                    const ForwardWorkspace<float>& work,
                                    ForwardBlock<float>& block) {
    if (block.keys.from) return;
    const KvRows rows = keys_of(problem, task);
    const bool is_whole = block.count % Shape::kRows == 0;
    if (!copies_keys(problem) && is_whole && lie_together(rows, block.begin, block.count)) {
      block.keys.from = static_cast<const float*>(row_at(rows, block.begin));
      block.keys.stride = problem.key.row_stride * 2;
      return;
    }
    const TileRows<float> wide = provide_rows<float, Shape::kRows>(
        rows, block.begin, block.count, problem.head_dim, problem.head_dim, work.keys);
    const std::int64_t pairs = pairs_in(problem.head_dim);
    float* to = work.keys.rows;
    for (std::int64_t k = 0; k < round_up(block.count, Shape::kRows); ++k, to += pairs)
      pack_pairs(k < wide.whole ? wide.from + k * wide.stride
                                : wide.tail + (k - wide.whole) * wide.tail_stride,
                 problem.head_dim, to);
    block.keys.from = work.keys.rows;
    block.keys.stride = pairs * 4;
  }

  // The strides of block.keys are in bytes here: its rows may be those of an array of bfloat16.
  template <class Tile>
  REGARD_INLINE Product product(const Tile& tile, const AttentionProblem& problem,
                                const AttentionTask&, const ForwardStrip<float>& strip,
                                const ForwardBlock<float>& block) {
    const char* const keys = reinterpret_cast<const char*>(block.keys.from);
    return {keys + tile.begin * block.keys.stride, block.keys.stride, strip.queries,
            pairs_in(problem.head_dim), query_scale<float>(problem)};
  }

 private:
  REGARD_INLINE void pack_pairs(const float* from, std::int64_t columns, float* to) {
    for (std::int64_t d = 0; d < columns; d += 2) {
      BFloat16 low, high{};
      narrow(from[d], low);
      if (d + 1 < columns) narrow(from[d + 1], high);
      const std::uint32_t pair = low.bits | static_cast<std::uint32_t>(high.bits) << 16;
      __builtin_memcpy(to + d / 2, &pair, sizeof pair);
    }
  }
};

}  // namespace
}  // namespace regard
