// output += weights value, in the scalar's own precision. For bfloat16, see ../bfloat16/scores.hpp.
// For values in groups of four-bit integers, group by group:
//
//   output = sum over keys of (weight scale) integer + sum over keys of weight minimum
//
// Integers and scales are nonnegative, so a hidden key's weight of -0.0 changes neither sum.
#pragma once

#include "../strips/products.hpp"
#include "forward_workspace.hpp"

namespace regard {
namespace {

// to[key][lane] = weight scale, and sums[lane] = the sum of weight minimum, over the runs' keys.
// Each sum has as many partial sums as a vector has lanes, as in the decode kernel.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void scale_by_group(const KeyRuns<Shape>& runs, const T* scales, const T* minimums,
                                    const T* weights, int vectors, T* to, T* sums) {
  constexpr int kWidth = Shape::kStripLanes;
  constexpr int kParts = kLanes<T>;
  Vec<T> parts[kParts][Shape::kVectors]{};
  for (int i = 0; i < runs.count; ++i)
    for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
      for (int v = 0; v < vectors; ++v) {
        const Vec<T> weight = load<T>(weights + k * kWidth + v * kLanes<T>);
        store(to + k * kWidth + v * kLanes<T>, weight * broadcast(scales[k]));
        Vec<T>& part = parts[k % kParts][v];
        part = fma(weight, broadcast(minimums[k]), part);
      }
  for (int half = kParts / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      for (int v = 0; v < vectors; ++v) parts[i][v] = parts[i][v] + parts[i + half][v];
  for (int v = 0; v < vectors; ++v) store(sums + v * kLanes<T>, parts[0][v]);
}

// Adds the values of the runs' keys, group by group. Integers are finite, so no select is needed.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_values_by_group(const AttentionProblem& problem,
                                         const ForwardWorkspace<T>& work,
                                         const ForwardBlock<T>& block, const KeyRuns<Shape>& runs,
                                         ForwardStrip<T>& strip) {
  constexpr int kWidth = Shape::kStripLanes;
  T sums[kWidth];
  for (std::int64_t first = 0; first < problem.value_dim; first += kGroupOfFourBits) {
    const T* const scales =
        block.value_groups + 2 * (first / kGroupOfFourBits) * block.group_stride;
    scale_by_group<Shape>(runs, scales, scales + block.group_stride, work.weights, strip.vectors,
                          work.group_weights, sums);
    const KeyTerm<T> term{work.group_weights, block.values.from + first, block.values.stride};
    T* const to = outputs_of<Shape>(strip) + first * kWidth;
    add_columns<Shape>(false, runs, &term, 1, kGroupOfFourBits, strip.vectors, strip.is_fresh, to);
    for (int d = 0; d < kGroupOfFourBits; ++d)
      for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>) {
        T* const at = to + d * kWidth + lane;
        store(at, load<T>(at) + load<T>(sums + lane));
      }
  }
}

REGARD_INLINE bool have_same_strides(const Operand& a, const Operand& b) {
  return a.element == b.element && a.row_stride == b.row_stride &&
         a.column_stride == b.column_stride && a.page_stride == b.page_stride;
}

// Whether values that begin where the keys begin are their first columns, as in multi-head latent
// attention (MLA), and tiles of them do not reach beyond a key. What has been copied of keys then
// serves both products.
template <class Shape>
REGARD_INLINE bool values_are_in_keys(const AttentionProblem& problem) {
  return problem.key.element != Element::q4_1 && have_same_strides(problem.key, problem.value) &&
         have_same_strides(problem.key_scales, problem.value_scales) &&
         round_up(problem.value_dim, Shape::kRows) <= problem.head_dim;
}

template <class Shape>
struct PlainValues {
  using T = typename Shape::Element;

  static bool copies_values(const AttentionProblem& problem) {
    const bool is_in_keys = problem.value.data == problem.key.data &&
                            problem.value_scales.data == problem.key_scales.data &&
                            values_are_in_keys<Shape>(problem);
    return !is_in_keys &&
           (!reads_in_place<T>(problem.value) || problem.value_dim % Shape::kRows != 0);
  }

  REGARD_INLINE void provide(const AttentionProblem& problem, const AttentionTask& task,
                             const ForwardWorkspace<T>& work, ForwardBlock<T>& block) {
    if (block.values.from) return;
    if (block.keys.from && task.value == task.key && task.value_scales == task.key_scales &&
        values_are_in_keys<Shape>(problem)) {
      block.values = block.keys;
      return;
    }
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
