// output += weights value, in the scalar's own precision. For bfloat16, see ../bfloat16/values.hpp.
#pragma once

#include "group_values.hpp"

namespace regard {
namespace {

template <class Shape>
struct PlainValues {
  using T = typename Shape::Element;

  static bool copies_values(const AttentionProblem& problem) {
    return !reads_in_place<T>(problem.value) || problem.value_dim % Shape::kRows != 0;
  }

  REGARD_INLINE void provide(const AttentionProblem& problem, const AttentionTask& task,
                             const ForwardWorkspace<T>& work, ForwardBlock<T>& block) {
    if (block.values.from) return;
    block.values = provide_rows<T, Shape::kRows>(
        values_of(problem, task), block.begin, block.count, problem.value_dim,
        round_up(problem.value_dim, Shape::kRows), work.values);
    if (!work.value_groups) return;
    block.value_groups = work.value_groups;
    copy_group_scales(values_of(problem, task), block.begin, block.count, problem.value_dim,
                      work.value_groups, block.group_stride);
  }

  // Adds the values of the runs' keys. Their weights are in the workspace.
  REGARD_INLINE void add(const AttentionProblem& problem, const ForwardWorkspace<T>& work,
                         const ForwardBlock<T>& block, const KeyRuns<Shape>& runs, bool selects,
                         ForwardStrip<T>& strip) {
    if (block.value_groups) return add_values_by_group<Shape>(problem, work, block, runs, strip);
    const KeyTerm<T> term{work.weights, block.values.from, block.values.stride};
    add_columns<Shape>(selects, runs, &term, 1, round_up(problem.value_dim, Shape::kRows),
                       strip.vectors, strip.is_fresh, outputs_of<Shape>(strip));
  }
};

}  // namespace
}  // namespace regard
