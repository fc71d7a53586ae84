// The rows of a mask, bool or float, that a strip's lanes read.
#pragma once

#include "rows.hpp"

namespace regard {
namespace {

// Finds every lane's row of a mask, bool or float, starting at a key. Lanes beyond the last row
// repeat it.
template <class M, class T>
REGARD_INLINE void mask_rows(const AttentionProblem& problem, const Operand& mask, const void* data,
                             const StripRows<T>& strip, std::int64_t key, const M** rows) {
  row_pointers(problem, mask, data, strip, key, rows);
  for (int lane = strip.rows; lane < strip.vectors * kLanes<T>; ++lane) rows[lane] = rows[lane - 1];
}

// Whether all lanes share one row of the mask, as in a mask that depends only on keys.
REGARD_INLINE bool lanes_share_a_row(const AttentionProblem& problem, const Operand& mask) {
  return mask.row_stride == 0 && (mask.head_stride == 0 || problem.heads == problem.kv_heads);
}

}  // namespace
}  // namespace regard
