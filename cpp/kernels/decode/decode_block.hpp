// A block's keys and values as the decode kernel reads them: in place, step by step, or copied if
// they do not fill vectors in place.
#pragma once

#include "../kv_rows.hpp"
#include "decode_workspace.hpp"

namespace regard {
namespace {

struct DecodeRows {
  Element element;
  std::ptrdiff_t stride;
  const void* first[kDecodeSteps];  // row of each visible step; no step crosses a page
};

struct DecodeBlock {
  int count;
  std::uint32_t steps;  // in which some row sees a key, one bit per step
  KeyInterval seen;     // within the block
  DecodeRows keys;
  DecodeRows values;
};

// The row of a key in a visible step; `key` is an index within the block.
template <class From>
REGARD_INLINE const From* row_of_key(const DecodeBlock& block, int key) {
  const auto at = static_cast<unsigned>(key);  // is divided in one instruction
  return static_cast<const From*>(block.keys.first[at / kDecodeStep]) +
         at % kDecodeStep * block.keys.stride;
}

// rows[i] = the row of `key` + i, for a vector of keys. Lanes beyond the block repeat its last key,
// and are hidden.
template <class From>
REGARD_INLINE void rows_of_keys(const DecodeBlock& block, int key, const From** rows) {
  const From* const first = row_of_key<From>(block, key);
  const int last = block.count - 1 - key;
  for (int i = 0; i < kWidth; ++i) rows[i] = first + (i < last ? i : last) * block.keys.stride;
}

// Calls body(keys, count) for every kTogether vectors of the steps' keys: keys[v] is the first key
// of a vector, as an index within the block. At the end, `count` may be smaller, and the other
// vectors repeat the first.
template <int kTogether, class Body>
REGARD_INLINE void for_vectors_of_keys(std::uint32_t steps, Body body) {
  int keys[kDecodeBlock / kWidth + kTogether], count = 0;
  for_steps(steps, [&](int step) {
    for (int key = step; key < step + kDecodeStep; key += kWidth) keys[count++] = key;
  });
  for (int v = 0; v < count; v += kTogether) {
    for (int i = count; i < v + kTogether; ++i) keys[i] = keys[v];
    body(keys + v, count - v < kTogether ? count - v : kTogether);
  }
}

// Whether the kernels read rows stored in other types than float32. Not on the baseline, which has
// no widening instructions: there it would only cost compile time.
#if defined(REGARD_BASELINE)
constexpr bool kDecodesOtherTypes = false;
#else
constexpr bool kDecodesOtherTypes = true;
#endif

// Whether rows are read in place: their columns are multiples of this number, and no step crosses a
// page. Rows in pages of other sizes are copied block by block, and so are rows of float8_e5m2,
// whose products would be as much code as those of E4M3.
REGARD_INLINE bool decodes_in_place(const AttentionProblem& problem, const Operand& operand,
                                    std::int64_t columns, std::int64_t multiple) {
  return operand.column_stride == 1 && columns % multiple == 0 &&
         problem.page_rows % kDecodeStep == 0 && operand.element != Element::float8_e5m2 &&
         (kDecodesOtherTypes || is_stored_as<float>(operand.element));
}

// Keys fill vectors, int8 and float8 with four columns per lane; q4_1 keys fill groups.
REGARD_INLINE bool decodes_keys_in_place(const AttentionProblem& problem) {
  const Element element = problem.key.element;
  return decodes_in_place(problem, problem.key, problem.head_dim,
                          element == Element::q4_1 ? kGroupOfFourBits
                          : is_quantized(element)  ? 4 * kWidth
                                                   : kWidth);
}

REGARD_INLINE bool decodes_values_in_place(const AttentionProblem& problem) {
  return decodes_in_place(problem, problem.value, problem.value_dim, kWidth);
}

// Calls `body` with the type of a block's keys or values.
template <class Body>
REGARD_INLINE void with_block_element(Element element, Body body) {
  if constexpr (kDecodesOtherTypes)
    with_cached_element<float>(element, body);
  else
    body(ElementType<float>{});
}

REGARD_NOINLINE DecodeBlock decode_block(const AttentionProblem& problem, const AttentionTask& task,
                                         std::int64_t key, std::uint32_t steps,
                                         const DecodeWorkspace& work) {
  const std::int64_t left = task.kv_len - key;
  DecodeBlock block{};
  block.count = static_cast<int>(left < kDecodeBlock ? left : kDecodeBlock);
  block.steps = steps;
  block.seen = seen_of_block(work.seen, key, block.count);
  const auto provide = [&](DecodeRows& to, const KvRows& rows, bool in_place, std::int64_t columns,
                           std::int64_t padded_columns, float* copies, float* scales,
                           float* groups) {
    to.element = in_place ? rows.operand.element : Element::float32;
    to.stride = in_place ? rows.operand.row_stride : padded_columns;
    if (in_place) {
      for_steps(steps, [&](int k) { to.first[k / kDecodeStep] = row_at(rows, key + k); });
    } else {
      copy_rows(rows, key, block.count, columns, copies, block.count, padded_columns);
      for_steps(steps, [&](int k) { to.first[k / kDecodeStep] = copies + k * padded_columns; });
    }
    if (to.element == Element::q4_1)
      copy_group_scales(rows, key, block.count, columns, groups, kDecodeBlock);
    if (!scales) return;
    for_runs_of_steps(steps, [&](int begin, int end) {
      const std::int64_t count = end < block.count ? end - begin : block.count - begin;
      copy_scales(rows, key + begin, count, scales + begin, end - begin);
    });
  };
  provide(block.keys, keys_of(problem, task), decodes_keys_in_place(problem), problem.head_dim,
          work.padded_head_dim, work.keys, work.key_scales, work.key_groups);
  provide(block.values, values_of(problem, task), decodes_values_in_place(problem),
          problem.value_dim, work.padded_value_dim, work.values, work.value_scales,
          work.value_groups);
  return block;
}

}  // namespace
}  // namespace regard
