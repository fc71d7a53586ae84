// Prefetches data that a strip reads or writes later. Its rows are too far apart for the processor
// to prefetch them, and issuing all prefetches at once would fill its queue, so each function
// prefetches one of several parts. The functions are inline because GCC removes a call to a
// function that only prefetches.
#pragma once

#include "../elements.hpp"
#include "rows.hpp"

namespace regard {
namespace {

// Prefetches one of `parts` parts of some rows of queries.
template <int kWrites>
REGARD_INLINE void prefetch_rows(const AttentionProblem& problem, const Operand& operand,
                                 const void* data, std::int64_t first_row, std::int64_t rows,
                                 std::int64_t columns, int part, int parts) {
  if (operand.column_stride != 1) return;
  const std::int64_t bytes = bytes_of(operand.element);
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (std::int64_t lane = rows * part / parts; lane < rows * (part + 1) / parts; ++lane) {
    std::int64_t query = first_row + lane, head = 0;
    if (group > 1) {
      head = query % group;
      query /= group;
    }
    const char* row = static_cast<const char*>(data) +
                      (query * operand.row_stride + head * operand.head_stride) * bytes;
    for (std::int64_t byte = 0; byte < columns * bytes; byte += kLineBytes)
      __builtin_prefetch(row + byte, kWrites);
  }
}

// Prefetches one of `parts` parts of the mask that a strip will read.
template <class T>
REGARD_INLINE void prefetch_mask(const AttentionProblem& problem, const Operand& mask,
                                 const void* data, const StripRows<T>& strip, std::int64_t key,
                                 int keys, int part, int parts) {
  if (!data || mask.column_stride != 1 || lanes_share_a_row(problem, mask) ||
      key >= strip.seen.window.end)
    return;
  const std::int64_t bytes = bytes_of(mask.element);
  const std::int64_t group = problem.heads / problem.kv_heads;
  const char* first = static_cast<const char*>(data) + key * bytes;
  for (int lane = strip.rows * part / parts; lane < strip.rows * (part + 1) / parts; ++lane) {
    const std::int64_t row = strip.first_row + lane;
    const char* from =
        first + (row / group * mask.row_stride + row % group * mask.head_stride) * bytes;
    for (std::int64_t byte = 0; byte < keys * bytes + kLineBytes - 1; byte += kLineBytes)
      __builtin_prefetch(from + byte, 0, 2);
  }
}

template <class T>
REGARD_INLINE void prefetch_masks(const AttentionProblem& problem, const AttentionTask& task,
                                  const StripRows<T>& strip, std::int64_t key, int keys, int part,
                                  int parts) {
  prefetch_mask(problem, problem.mask, task.mask, strip, key, keys, part, parts);
  prefetch_mask(problem, problem.bias, task.bias, strip, key, keys, part, parts);
}

}  // namespace
}  // namespace regard
