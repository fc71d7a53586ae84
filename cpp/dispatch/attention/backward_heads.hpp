// The kv heads of a problem's batch entries, one after another: each owns the gradients of its keys.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../../problem/backward.hpp"
#include "../batch_index.hpp"
#include "tasks.hpp"

namespace regard {

class BackwardHeads {
 public:
  explicit BackwardHeads(const BackwardProblem& problem) : problem_(problem) {}

  const BackwardProblem& problem() const { return problem_; }
  std::int64_t count() const { return problem_.forward.batch.count * problem_.forward.kv_heads; }

  // All rows of a head.
  BackwardTask at(std::int64_t index) const {
    const AttentionProblem& forward = problem_.forward;
    return of(index / forward.kv_heads, index % forward.kv_heads);
  }

  BackwardTask of(std::int64_t entry, std::int64_t kv_head) const {
    const AttentionProblem& forward = problem_.forward;
    const std::int64_t head = kv_head * (forward.heads / forward.kv_heads);
    const std::int64_t first_query = forward.query_starts ? forward.query_starts[entry] : 0;
    const std::int64_t first_key = forward.key_starts ? forward.key_starts[entry] : 0;
    const BatchIndex batch(forward.batch, entry);
    const auto at = [&](const Operand& operand, std::int64_t of_head, std::int64_t row) {
      return advance(batch.in(operand), operand, of_head * operand.head_stride + row * operand.row_stride);
    };
    BackwardTask task{};
    task.forward = task_of(forward, entry, kv_head, 0, rows_of(forward, entry));
    task.grad_output = at(problem_.grad_output, head, first_query);
    task.grad_lse = at(problem_.grad_lse, head, first_query);
    task.grad_query = at(problem_.grad_query, head, first_query);
    task.grad_key = at(problem_.grad_key, kv_head, first_key);
    task.grad_value = at(problem_.grad_value, kv_head, first_key);
    task.grad_bias = at(problem_.grad_bias, head, first_query);
    task.slope_terms = at(problem_.slope_terms, head, first_query);
    task.key_rows = forward.key_starts ? forward.key_starts[entry + 1] - first_key : forward.kv_len;
    return task;
  }

 private:
  const BackwardProblem& problem_;
};

}  // namespace regard
