// A tile's scores as the product of keys and queries in the scalar's own precision. For the other
// precisions, see ../int8/scores.hpp and ../bfloat16/scores.hpp. Keys in groups of four-bit
// integers (../groups_of_four_bits.hpp) are multiplied group by group, through memory, so that the
// tiles of other keys keep their registers.
#pragma once

#include "../strips/lanes.hpp"
#include "forward_workspace.hpp"

namespace regard {
namespace {

template <class Shape, class T = typename Shape::Element>
struct KeyProduct : RowProduct<T, Shape::kStripLanes> {
  const ForwardBlock<T>& block;
  const ForwardStrip<T>& strip;
  int begin;  // the tile's first key

  template <int kRows, int kVectors>
  REGARD_MEMBER void multiply(Accumulators<T, kRows, kVectors>& acc, int lane) const {
    if (__builtin_expect(block.products != nullptr, false))
      return load_tile<T, kRows, kVectors>(acc, block.products + begin * Shape::kStripLanes + lane,
                                           Shape::kStripLanes);
    if (__builtin_expect(block.key_groups != nullptr, false)) {
      T tile[kRows * kVectors * kLanes<T>];
      multiply_by_group<Shape, kVectors>(block, strip, begin, this->depth, lane, tile);
      return load_tile<T, kRows, kVectors>(acc, tile, kVectors * kLanes<T>);
    }
    RowProduct<T, Shape::kStripLanes>::template multiply<kRows, kVectors>(acc, lane);
  }
};

// tile[key][kVectors] = the product. Keys and queries are integers.
template <class Shape, int kVectors, class T = typename Shape::Element>
REGARD_NOINLINE void multiply_by_group(const ForwardBlock<T>& block, const ForwardStrip<T>& strip,
                                       int begin, std::int64_t head_dim, int lane, T* tile) {
  constexpr int kRows = Shape::kRows, kPitch = Shape::kStripLanes;
  Accumulators<T, kRows, kVectors> acc;
  clear<T, kRows, kVectors>(acc);
  for (std::int64_t group = 0; group < head_dim / kGroupOfFourBits; ++group) {
    const std::int64_t first = group * kGroupOfFourBits;
    Accumulators<T, kRows, kVectors> sums;
    clear<T, kRows, kVectors>(sums);
    multiply_rows<T, kRows, kVectors>(sums, tile_row(block.keys, begin) + first, block.keys.stride,
                                      strip.queries + first * kPitch + lane, kPitch,
                                      kGroupOfFourBits);
    const T* const scales = block.key_groups + 2 * group * block.group_stride + begin;
    const T* const minimums = scales + block.group_stride;
    const T* const sums_of_query = strip.query_sums + group * kPitch + lane;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = fma(sums[r][v], broadcast(scales[r]), acc[r][v]);
        acc[r][v] = fma(load(sums_of_query + v * kLanes<T>), broadcast(minimums[r]), acc[r][v]);
      }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      store(tile + (r * kVectors + v) * kLanes<T>,
            acc[r][v] * load(strip.query_steps + lane + v * kLanes<T>));
}

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
struct PlainScores {
  using T = typename Shape::Element;
  static constexpr bool kGathers = true;

  static bool copies_keys(const AttentionProblem& problem) {
    return !reads_in_place<T>(problem.key);
  }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardStrip<T>& strip) {
    regard::pack_queries<Shape>(problem, problem.query, task.query, strip, strip.queries,
                                task.key_means);
    if (strip.query_steps) round_queries<Shape>(problem.head_dim, strip);
  }

  REGARD_INLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardWorkspace<T>& work, ForwardBlock<T>& block) {
    if (block.keys.from) return;
    block.keys = provide_rows<T, Shape::kRows>(keys_of(problem, task), block.begin, block.count,
                                               problem.head_dim, problem.head_dim, work.keys);
    if (!work.key_groups) return;
    block.group_stride = round_up(block.count, Shape::kRows);
    block.key_groups = work.key_groups;
    copy_group_scales(keys_of(problem, task), block.begin, block.count, problem.head_dim,
                      work.key_groups, block.group_stride);
  }

  template <class Tile>
  REGARD_INLINE KeyProduct<Shape> product(const Tile& tile, const AttentionProblem& problem,
                                          const AttentionTask&, const ForwardStrip<T>& strip,
                                          const ForwardBlock<T>& block) {
    return {product_of<Shape>(tile, block.keys, strip.queries, problem.head_dim), block, strip,
            tile.begin};
  }
};

}  // namespace
}  // namespace regard
