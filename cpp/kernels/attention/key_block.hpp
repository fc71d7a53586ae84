// A block of keys and values as the kernels read it: in place, or copied into the workspace where the
// array's strides, type or end forbid that. Nothing is touched before it is asked for, so that a block
// that no strip sees costs nothing.
#pragma once

#include "../kv_rows.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

// Keys [begin, end) of a block whose tiles are computed, without a hidden one between.
struct KeyRun {
  int begin;
  int end;
};

template <class T>
struct KeyBlock {
  std::int64_t begin;  // position of its first key; a multiple of kBlockKeys
  int count;
  const T* keys;  // null until asked for, as are values
  std::ptrdiff_t key_stride;
  const T* tail_keys;  // the last tile, padded, where count is not a whole number of tiles
  const T* key_scales;  // null where rows are not int8, as are value_scales
  const T* values;
  std::ptrdiff_t value_stride;
  const T* value_scales;
  int values_are_finite;  // -1 until asked for
};

template <class T>
REGARD_INLINE bool reads_in_place(const Operand& operand) {
  const std::int64_t bytes = operand.row_stride * static_cast<std::int64_t>(sizeof(T));
  return is_stored_as<T>(operand.element) && operand.column_stride == 1 &&
         (bytes < 0 ? -bytes : bytes) < kFarRowBytes;
}

template <class T, int kRows>
REGARD_INLINE bool copies_values(const AttentionProblem& problem) {
  return !reads_in_place<T>(problem.value) || problem.value_dim % kRows != 0;
}

template <class T>
REGARD_INLINE KeyBlock<T> block_at(const AttentionTask& task, std::int64_t begin, int block_keys) {
  KeyBlock<T> block{};
  const std::int64_t left = task.kv_len - begin;
  block.begin = begin;
  block.count = static_cast<int>(left < 0 ? 0 : left < block_keys ? left : block_keys);
  block.values_are_finite = -1;
  return block;
}

template <class T, int kRows>
REGARD_NOINLINE void provide_keys(const AttentionProblem& problem, const AttentionTask& task,
                                  const Workspace<T>& work, KeyBlock<T>& block) {
  if (block.keys) return;
  const KvRows rows = keys_of(problem, task);
  const std::int64_t whole = block.count / kRows * kRows;
  if (!reads_in_place<T>(problem.key) || !lie_together(rows, block.begin, block.count)) {
    copy_rows(rows, block.begin, block.count, problem.head_dim, work.keys,
              round_up(block.count, kRows), problem.head_dim);
    block.keys = work.keys;
    block.key_stride = problem.head_dim;
    block.tail_keys = work.keys + whole * problem.head_dim;
    if (rows.scales) {
      copy_scales(rows, block.begin, block.count, work.key_scales, round_up(block.count, kRows));
      block.key_scales = work.key_scales;
    }
    return;
  }
  block.keys = static_cast<const T*>(row_at(rows, block.begin));
  block.key_stride = problem.key.row_stride;
  block.tail_keys = work.tail_keys;
  if (whole < block.count)
    copy_rows(rows, block.begin + whole, block.count - whole, problem.head_dim, work.tail_keys, kRows,
              problem.head_dim);
}

template <class T, int kRows>
REGARD_NOINLINE void provide_values(const AttentionProblem& problem, const AttentionTask& task,
                                    const Workspace<T>& work, KeyBlock<T>& block) {
  if (block.values) return;
  const KvRows rows = values_of(problem, task);
  if (copies_values<T, kRows>(problem) || !lie_together(rows, block.begin, block.count)) {
    const std::int64_t padded_value_dim = round_up(problem.value_dim, kRows);
    copy_rows(rows, block.begin, block.count, problem.value_dim, work.values, block.count,
              padded_value_dim);
    block.values = work.values;
    block.value_stride = padded_value_dim;
    if (rows.scales) {
      copy_scales(rows, block.begin, block.count, work.value_scales, block.count);
      block.value_scales = work.value_scales;
      block.values_are_finite = 1;
    }
    return;
  }
  block.values = static_cast<const T*>(row_at(rows, block.begin));
  block.value_stride = problem.value.row_stride;
}

// x - x is +0, all bits clear, for every finite x and for no other.
template <class T>
REGARD_NOINLINE bool rows_are_finite(const T* from, std::ptrdiff_t stride, std::int64_t rows, std::int64_t columns) {
  Mask<T> bits{};
  for (std::int64_t row = 0; row < rows; ++row, from += stride) {
    std::int64_t i = 0;
    for (; i + kLanes<T> <= columns; i += kLanes<T>) {
      const Vec<T> vector = load(from + i);
      bits |= as_bits<T>(vector - vector);
    }
    for (; i < columns; ++i) bits |= as_bits<T>(broadcast(from[i] - from[i]));
  }
  return !any<T>(bits != 0);
}

template <class T>
REGARD_INLINE bool all_values_are_finite(KeyBlock<T>& block, std::int64_t value_dim) {
  if (block.values_are_finite < 0)
    block.values_are_finite = rows_are_finite(block.values, block.value_stride, block.count, value_dim);
  return block.values_are_finite != 0;
}

}  // namespace
}  // namespace regard
