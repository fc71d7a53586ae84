// A tile's scores as the product of keys and queries in the scalar's own precision, as they are or
// in groups of four-bit integers (grouped_scores.hpp).
// ../int8/scores.hpp and ../bfloat16/scores.hpp have the others.
#pragma once

#include "grouped_scores.hpp"

namespace regard {
namespace {

template <class Shape>
struct PlainScores {
  using T = typename Shape::Element;

  static bool copies_keys(const AttentionProblem& problem) {
    return !reads_in_place<T>(problem.key);
  }

  REGARD_INLINE void pack_queries(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardStrip<T>& strip) {
    regard::pack_queries<Shape>(problem, problem.query, task.query, strip, strip.queries);
    if (strip.query_steps) round_queries<T>(problem.head_dim, strip);
  }

  REGARD_INLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardWorkspace<T>& work, ForwardBlock<T>& block) {
    regard::provide_keys<T, Shape::kRows>(problem, task, work, block);
  }

  template <class Tile>
  REGARD_INLINE StoredProduct<T> product(const Tile& tile, const AttentionProblem& problem,
                                         const AttentionTask&, const ForwardStrip<T>& strip,
                                         const ForwardBlock<T>& block) {
    return {product_of(tile, block.keys, strip.queries, problem.head_dim),
            block.key_groups ? block.key_groups + tile.begin : nullptr, block.group_stride,
            strip.query_sums, strip.query_steps};
  }
};

}  // namespace
}  // namespace regard
