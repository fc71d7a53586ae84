// Merges the states of the chunks of a row's keys, in key order. One block has one row.
#pragma once

#include "row_output.hpp"

namespace regard::cuda {

constexpr int kMostValueDim = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) merge_chunks(const __grid_constant__ Arguments arguments) {
  const AttentionProblem& problem = arguments.problem;
  const std::uint32_t group = problem.heads / problem.kv_heads;
  const std::uint32_t rows = group * problem.q_len;
  const int row = static_cast<int>(blockIdx.x % rows);
  const int kv_head = static_cast<int>(blockIdx.x / rows % problem.kv_heads);
  const Entry entry = locate_entry(problem, static_cast<std::int32_t>(blockIdx.x / rows / problem.kv_heads));
  const int query = row / static_cast<int>(group);
  const int head = kv_head * static_cast<int>(group) + row % static_cast<int>(group);
  if (query >= entry.q_len) return;

  const std::int64_t first = first_state(arguments, entry.number, kv_head, row);
  const int columns = problem.value_dim, column = static_cast<int>(threadIdx.x) * 2;
  static_assert(kMostValueDim <= 2 * kThreads);
  SoftmaxState state;
  float output[2] = {};
  for (int chunk = 0; chunk < arguments.chunks; ++chunk) {
    const std::int64_t number = first + chunk;
    const float reference = arguments.chunk_states[2 * number], sum = arguments.chunk_states[2 * number + 1];
    if (is_nothing(sum)) continue;
    const float later = fmaxf(state.reference, reference);
    const float before = factor_between(state.reference, later), of_chunk = factor_between(reference, later);
    state.sum = state.sum * before + sum * of_chunk;
    state.reference = later;
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (column + c < columns)
        output[c] = output[c] * before + arguments.chunk_outputs[number * columns + column + c] * of_chunk;
  }
  const FinishedRow finished = finish_row(state, problem.sinks, head);
  store_pair<T>(arguments, offset_of_row(problem, problem.output, entry, head, query), column,
                finished.saw_nothing ? 0.0f : output[0] * finished.factor,
                finished.saw_nothing ? 0.0f : output[1] * finished.factor);
  if (threadIdx.x == 0) store_lse(problem, entry, head, query, finished.lse);
}

}  // namespace regard::cuda
