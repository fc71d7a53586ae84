// Keys or values of a task as they are stored: side by side or in pages, in any type whose values T
// holds, or as int8 with a scale a row; such keys are rotated (hadamard.hpp).
//
// Rows of int8 are multiplied as integers, and their scales come afterwards:
//
//   score  = scale[key] (sum over d of rotated query[d] stored[key][d])
//   output = sum over keys of (weight[key] scale[key]) stored[key]
//
// That is one multiplication for a key and a row instead of one or two for an element. All kernels
// do the same operations in the same order, so they give the same bits.
#pragma once

#include "../problem/attention.hpp"
#include "elements.hpp"
#include "pack.hpp"

namespace regard {
namespace {

struct KvRows {
  const Operand& operand;
  const void* data;
  const Operand& scale_operand;
  const float* scales;  // null where rows are not int8
  const std::int32_t* pages;
  std::int64_t page_rows;  // 0 where rows lie side by side
  KeyInterval evicted;     // pages of the entry that have no column in `pages`
};

// The evicted pages of an entry follow its pages of sink tokens.
REGARD_INLINE KeyInterval evicted_pages_of(const AttentionProblem& problem,
                                           const AttentionTask& task) {
  if (task.evicted_pages == 0) return {};
  const std::int64_t first = (problem.keep_first + problem.page_rows - 1) / problem.page_rows;
  return {first, first + task.evicted_pages};
}

REGARD_INLINE KvRows keys_of(const AttentionProblem& problem, const AttentionTask& task) {
  return {problem.key,
          task.key,
          problem.key_scales,
          task.key_scales,
          task.pages,
          problem.page_rows,
          evicted_pages_of(problem, task)};
}

REGARD_INLINE KvRows values_of(const AttentionProblem& problem, const AttentionTask& task) {
  return {problem.value, task.value,        problem.value_scales,           task.value_scales,
          task.pages,    problem.page_rows, evicted_pages_of(problem, task)};
}

// Whether the row lies in an evicted page: it is hidden from every query and never read.
REGARD_INLINE bool is_evicted(const KvRows& rows, std::int64_t row) {
  if (rows.evicted.end == 0) return false;
  const std::int64_t page = row / rows.page_rows;
  return page >= rows.evicted.begin && page < rows.evicted.end;
}

// Counts the elements from the operand's first row to a row that is not evicted.
REGARD_INLINE std::int64_t offset_of(const KvRows& rows, const Operand& operand, std::int64_t row) {
  if (rows.page_rows == 0) return row * operand.row_stride;
  std::int64_t column = row / rows.page_rows;
  if (column >= rows.evicted.begin) column -= rows.evicted.end - rows.evicted.begin;
  return rows.pages[column] * operand.page_stride + row % rows.page_rows * operand.row_stride;
}

REGARD_INLINE const void* row_at(const KvRows& rows, std::int64_t row) {
  return static_cast<const char*>(rows.data) +
         offset_of(rows, rows.operand, row) * bytes_of(rows.operand.element);
}

// The scales of this row and of those after it in its page.
REGARD_INLINE const float* scales_at(const KvRows& rows, std::int64_t row) {
  return rows.scales ? rows.scales + offset_of(rows, rows.scale_operand, row) : nullptr;
}

// Whether every row from `first` on lies row_stride after the one before.
REGARD_INLINE bool lie_together(const KvRows& rows, std::int64_t first, std::int64_t count) {
  return rows.page_rows == 0 || first % rows.page_rows + count <= rows.page_rows;
}

// How many of the `count` rows from `first` on lie like that.
REGARD_INLINE std::int64_t rows_together(const KvRows& rows, std::int64_t first,
                                         std::int64_t count) {
  if (rows.page_rows == 0) return count;
  const std::int64_t left = rows.page_rows - first % rows.page_rows;
  return left < count ? left : count;
}

// Copies `count` rows from the row `first` on to rows of padded_columns of T, with zeros to their
// right, below them and in place of evicted rows. Integers stay integers.
template <class T>
REGARD_NOINLINE void copy_rows(const KvRows& rows, std::int64_t first, std::int64_t count,
                               std::int64_t columns, T* to, std::int64_t padded_count,
                               std::int64_t padded_columns) {
  for (const std::int64_t end = first + count, padded_end = first + padded_count;
       first < padded_end;) {
    const std::int64_t together = rows_together(rows, first, end - first);
    const bool is_last = first + together >= end;
    const std::int64_t padded = is_last ? padded_end - first : together;
    const bool is_there = !is_evicted(rows, first);
    with_stored_element<T>(rows.operand.element, [&](auto element) {
      using From = typename decltype(element)::Type;
      const From* from = is_there ? static_cast<const From*>(row_at(rows, first)) : nullptr;
      copy_padded<T>(from, rows.operand.row_stride, rows.operand.column_stride,
                     is_there ? together : 0, columns, to, padded, padded_columns);
    });
    first += padded;
    to += padded * padded_columns;
  }
}

// Copies their scales, which lie side by side in a page, with zeros after them and for evicted
// rows.
template <class T>
REGARD_NOINLINE void copy_scales(const KvRows& rows, std::int64_t first, std::int64_t count, T* to,
                                 std::int64_t padded_count) {
  T* const end_of_padding = to + padded_count;
  for (const std::int64_t end = first + count; first < end;) {
    const std::int64_t together = rows_together(rows, first, end - first);
    const float* from = is_evicted(rows, first) ? nullptr : scales_at(rows, first);
    for (std::int64_t i = 0; i < together; ++i) to[i] = from ? static_cast<T>(from[i]) : T(0);
    first += together;
    to += together;
  }
  for (; to < end_of_padding; ++to) *to = T(0);
}

}  // namespace
}  // namespace regard
