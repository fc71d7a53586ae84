// A tile's scores as the product of keys and queries in the scalar's own precision. For the other
// precisions, see ../int8/scores.hpp and ../bfloat16/scores.hpp.
#pragma once

#include "group_scores.hpp"

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
