// The kv heads of a problem's batch entries, one after another: each owns the gradients of its keys.
#pragma once

#include <cstdint>

#include "../../problem/backward.hpp"
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
    const std::int64_t entry = index / forward.kv_heads, kv_head = index % forward.kv_heads;
    const HeadPlace place(forward, entry, kv_head);
    BackwardTask task{};
    task.forward = task_of(forward, entry, kv_head, 0, rows_of(forward, entry));
    task.grad_output = place.of_queries(problem_.grad_output);
    task.grad_lse = place.of_queries(problem_.grad_lse);
    task.grad_query = place.of_queries(problem_.grad_query);
    task.grad_key = place.of_keys(problem_.grad_key);
    task.grad_value = place.of_keys(problem_.grad_value);
    task.grad_bias = place.of_queries(problem_.grad_bias);
    task.slope_terms = place.of_queries(problem_.slope_terms);
    task.deltas = place.of_queries(problem_.deltas);
    task.key_rows = keys_of(forward, entry);
    return task;
  }

 private:
  const BackwardProblem& problem_;
};

}  // namespace regard
