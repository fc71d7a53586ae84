// A block's keys and values as the decode kernel reads them: in place, step by step, or copied if
// they do not fill vectors in place.
#pragma once

#include "../kv_rows.hpp"
#include "decode_workspace.hpp"

namespace regard {
namespace {

template <class Shape>
struct DecodeBlock {
  static constexpr int kSteps = (Shape::kBlockKeys + kDecodeStep<Shape> - 1) / kDecodeStep<Shape>;
  int count;
  Element key_element;
  Element value_element;
  std::ptrdiff_t key_stride;
  std::ptrdiff_t value_stride;
  // The first row of each visible step. No step crosses a page.
  const void* keys[kSteps];
  const void* values[kSteps];
};

// rows[i] = the key `k` + i of the step at `begin`. Lanes beyond the block repeat its last key, and
// are hidden.
template <class Shape, class From>
REGARD_INLINE void rows_of_keys(const DecodeBlock<Shape>& block, int begin, int k,
                                const From** rows) {
  const auto* const step = static_cast<const From*>(block.keys[begin / kDecodeStep<Shape>]);
  const int last = block.count - begin - 1;
  for (int i = 0; i < kLanes<typename Shape::Element>; ++i)
    rows[i] = step + (k + i < last ? k + i : last) * block.key_stride;
}

// Whether the kernels read rows stored in a type other than the type of the arithmetic. Not in
// float64, because few callers mix the two, and not on the baseline, which has no widening
// instructions: there it would only cost compile time.
#if defined(REGARD_BASELINE)
template <class T>
constexpr bool kDecodesOtherTypes = false;
#else
template <class T>
constexpr bool kDecodesOtherTypes = sizeof(T) == 4;
#endif

template <class T>
REGARD_INLINE bool decodes_element(Element element) {
  return kDecodesOtherTypes<T> || is_stored_as<T>(element);
}

// Whether no step crosses a page. Rows in pages of other sizes are copied block by block.
template <class Shape>
REGARD_INLINE bool have_whole_steps(const AttentionProblem& problem) {
  return problem.page_rows % kDecodeStep<Shape> == 0;
}

// Keys are read in place if their columns fill vectors; int8 and float8 have four columns per lane.
// q4_1 keys must fill groups.
template <class T>
REGARD_INLINE std::int64_t columns_of_a_square(Element element) {
  if (element == Element::q4_1) return kGroupOfFourBits;
  return is_quantized(element) ? 4 * kLanes<T> : kLanes<T>;
}

template <class Shape, class T = typename Shape::Element>
REGARD_INLINE bool decodes_keys_in_place(const AttentionProblem& problem) {
  return problem.key.column_stride == 1 &&
         problem.head_dim % columns_of_a_square<T>(problem.key.element) == 0 &&
         have_whole_steps<Shape>(problem) && decodes_element<T>(problem.key.element);
}

template <class Shape, class T = typename Shape::Element>
REGARD_INLINE bool decodes_values_in_place(const AttentionProblem& problem) {
  return problem.value.column_stride == 1 && problem.value_dim % kLanes<T> == 0 &&
         have_whole_steps<Shape>(problem) && decodes_element<T>(problem.value.element);
}

// Calls `body` with the type of a block's keys or values.
template <class T, class Body>
REGARD_INLINE void with_block_element(Element element, Body body) {
  if constexpr (kDecodesOtherTypes<T>)
    with_cached_element<T>(element, body);
  else
    body(ElementType<T>{});
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE DecodeBlock<Shape> decode_block(const AttentionProblem& problem,
                                                const AttentionTask& task, std::int64_t key,
                                                std::uint32_t steps,
                                                const DecodeWorkspace<T>& work) {
  constexpr int kStep = kDecodeStep<Shape>;
  constexpr Element kOwn = sizeof(T) == 4 ? Element::float32 : Element::float64;
  const std::int64_t left = task.kv_len - key;
  const KvRows keys = keys_of(problem, task), values = values_of(problem, task);
  DecodeBlock<Shape> block{};
  block.count = static_cast<int>(left < Shape::kBlockKeys ? left : Shape::kBlockKeys);
  if (decodes_keys_in_place<Shape>(problem)) {
    block.key_element = problem.key.element;
    block.key_stride = problem.key.row_stride;
    for_steps<Shape>(steps, [&](int k) { block.keys[k / kStep] = row_at(keys, key + k); });
  } else {
    copy_rows(keys, key, block.count, problem.head_dim, work.keys, block.count,
              work.padded_head_dim);
    block.key_element = kOwn;
    block.key_stride = work.padded_head_dim;
    for_steps<Shape>(steps,
                     [&](int k) { block.keys[k / kStep] = work.keys + k * work.padded_head_dim; });
  }
  if (decodes_values_in_place<Shape>(problem)) {
    block.value_element = problem.value.element;
    block.value_stride = problem.value.row_stride;
    for_steps<Shape>(steps, [&](int k) { block.values[k / kStep] = row_at(values, key + k); });
  } else {
    copy_rows(values, key, block.count, problem.value_dim, work.values, block.count,
              work.padded_value_dim);
    block.value_element = kOwn;
    block.value_stride = work.padded_value_dim;
    for_steps<Shape>(
        steps, [&](int k) { block.values[k / kStep] = work.values + k * work.padded_value_dim; });
  }
  constexpr int kBlock = round_up(Shape::kBlockKeys, kStep);
  if (block.key_element == Element::q4_1)
    copy_group_scales(keys, key, block.count, problem.head_dim, work.key_groups, kBlock);
  if (block.value_element == Element::q4_1)
    copy_group_scales(values, key, block.count, problem.value_dim, work.value_groups, kBlock);
  if (work.key_scales) {
    copy_scales(keys, key, block.count, work.key_scales, kBlock);
    copy_scales(values, key, block.count, work.value_scales, kBlock);
  }
  return block;
}

}  // namespace
}  // namespace regard
