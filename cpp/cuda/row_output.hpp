// Writes results.
#pragma once

#include "softmax_state.hpp"

namespace regard::cuda {

// Writes `column` and the next column, if they exist.
template <class T>
REGARD_DEVICE void store_pair(const Arguments& arguments, std::int64_t row_offset, int column, float first,
                              float second) {
  const int columns = arguments.problem.value_dim;
  if (column >= columns) return;
  if constexpr (T::kBytes == 4) {
    float* to = static_cast<float*>(arguments.problem.output.data) + row_offset + column;
    to[0] = first;
    if (column + 1 < columns) to[1] = second;
  } else {
    std::uint16_t* to = static_cast<std::uint16_t*>(arguments.problem.output.data) + row_offset + column;
    const std::uint32_t both = pack<T>(first, second);
    if (arguments.output_is_paired && column + 1 < columns) {
      *reinterpret_cast<std::uint32_t*>(to) = both;
      return;
    }
    to[0] = static_cast<std::uint16_t>(both);
    if (column + 1 < columns) to[1] = static_cast<std::uint16_t>(both >> 16);
  }
}

REGARD_DEVICE void store_lse(const AttentionProblem& problem, const Entry& entry, int head, int query,
                             float lse) {
  if (!problem.lse.data) return;
  static_cast<float*>(problem.lse.data)[offset_of_row(problem, problem.lse, entry, head, query)] = lse;
}

// The index of a row's state for the first chunk.
REGARD_DEVICE std::int64_t first_state(const Arguments& arguments, int entry, int kv_head, std::int64_t row) {
  const AttentionProblem& problem = arguments.problem;
  const std::int64_t rows = static_cast<std::int64_t>(problem.heads / problem.kv_heads) * problem.q_len;
  return ((static_cast<std::int64_t>(entry) * problem.kv_heads + kv_head) * rows + row) * arguments.chunks;
}

}  // namespace regard::cuda
