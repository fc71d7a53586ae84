// Scores of keys in groups of four-bit integers (../groups_of_four_bits.hpp). The product of a tile
// is computed group by group.
#pragma once

#include "../attention/forward_block.hpp"
#include "../strips/lanes.hpp"

namespace regard {
namespace {

// The product of a tile's keys and a strip's queries, both of which are integers.
template <class Shape, class T = typename Shape::Element>
struct GroupProduct {
  const T* rows;
  std::ptrdiff_t row_stride;
  const T* lanes;
  std::int64_t depth;
  const T* groups;  // [groups][scale, minimum][group_stride], for the tile's keys
  std::ptrdiff_t group_stride;
  const T* query_sums;   // [groups][kStripLanes]
  const T* query_steps;  // [lanes]

  template <int kRows, int kVectors>
  REGARD_MEMBER void multiply(Accumulators<T, kRows, kVectors>& acc, int lane) const {
    constexpr int kWidth = Shape::kStripLanes;
    clear<T, kRows, kVectors>(acc);
    for (std::int64_t group = 0; group < depth / kGroupOfFourBits; ++group) {
      const std::int64_t first = group * kGroupOfFourBits;
      Accumulators<T, kRows, kVectors> sums;
      clear<T, kRows, kVectors>(sums);
      multiply_rows<T, kRows, kVectors>(sums, rows + first, row_stride,
                                        lanes + first * kWidth + lane, kWidth, kGroupOfFourBits);
      const T* const scales = groups + 2 * group * group_stride;
      const T* const minimums = scales + group_stride;
      const T* const sums_of_query = query_sums + group * kWidth + lane;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          acc[r][v] = fma(sums[r][v], broadcast(scales[r]), acc[r][v]);
          acc[r][v] = fma(load(sums_of_query + v * kLanes<T>), broadcast(minimums[r]), acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = acc[r][v] * load(query_steps + lane + v * kLanes<T>);
  }
};

// Rounds the strip's packed queries to integers.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void round_queries(std::int64_t head_dim, const ForwardStrip<T>& strip) {
  constexpr int lanes = Shape::kStripLanes;
  const Vec<T> round = broadcast(kRoundsToInteger<T>);
  for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>) {
    T* const queries = strip.queries + lane;
    Vec<T> largest{};
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const Vec<T> query = load(queries + d * lanes);
      const Vec<T> magnitude = query < Vec<T>{} ? -query : query;
      // NaN stays NaN.
      largest = largest >= magnitude || largest != largest ? largest : magnitude;
    }
    Vec<T> inverse{};
    for (int i = 0; i < kLanes<T>; ++i) {
      const QuerySteps<T> steps = query_steps<T>(largest[i]);
      strip.query_steps[lane + i] = steps.step;
      inverse[i] = steps.inverse;
    }
    Vec<T> sum{};
    for (std::int64_t d = 0; d < head_dim; ++d) {
      T* const at = queries + d * lanes;
      const Vec<T> integer = load(at) * inverse + round - round;
      store(at, inverse == Vec<T>{} ? Vec<T>{} : integer);
      sum = sum + load(at);
      if (d % kGroupOfFourBits != kGroupOfFourBits - 1) continue;
      store(strip.query_sums + d / kGroupOfFourBits * lanes + lane, sum);
      sum = Vec<T>{};
    }
  }
}

template <class Shape>
struct GroupScores {
  using T = typename Shape::Element;

  static bool copies_keys(const AttentionProblem&) { return true; }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardStrip<T>& strip) {
    regard::pack_queries<Shape>(problem, problem.query, task.query, strip, strip.queries);
    round_queries<Shape>(problem.head_dim, strip);
  }

  REGARD_INLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardWorkspace<T>& work, ForwardBlock<T>& block) {
    if (block.keys.from) return;
    regard::provide_keys<T, Shape::kRows>(problem, task, work, block);
    block.group_stride = round_up(block.count, Shape::kRows);
    block.key_groups = work.key_groups;
    copy_group_scales(keys_of(problem, task), block.begin, block.count, problem.head_dim,
                      work.key_groups, block.group_stride);
  }

  template <class Tile>
  REGARD_INLINE GroupProduct<Shape> product(const Tile& tile, const AttentionProblem& problem,
                                        const AttentionTask&, const ForwardStrip<T>& strip,
                                        const ForwardBlock<T>& block) {
    const auto rows = product_of<Shape>(tile, block.keys, strip.queries, problem.head_dim);
    return {rows.rows,
            rows.row_stride,
            rows.lanes,
            rows.depth,
            block.key_groups + tile.begin,
            block.group_stride,
            strip.query_sums,
            strip.query_steps};
  }
};

}  // namespace
}  // namespace regard
