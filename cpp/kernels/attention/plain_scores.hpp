// A tile's scores as the product of keys and queries in the scalar's own precision. For the other
// precisions, see ../int8/scores.hpp and ../bfloat16/scores.hpp.
#pragma once

#include "../strips/lanes.hpp"
#include "forward_block.hpp"

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
  }

  REGARD_INLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                  const ForwardWorkspace<T>& work, ForwardBlock<T>& block) {
    regard::provide_keys<T, Shape::kRows>(problem, task, work, block);
  }

  template <class Tile>
  REGARD_INLINE auto product(const Tile& tile, const AttentionProblem& problem,
                                      const AttentionTask&, const ForwardStrip<T>& strip,
                                      const ForwardBlock<T>& block) {
    return product_of<Shape>(tile, block.keys, strip.queries, problem.head_dim);
  }
};

}  // namespace
}  // namespace regard
