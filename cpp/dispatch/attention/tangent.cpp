#include "../compute.hpp"

#include <algorithm>

#include "../split.hpp"
#include "../targets.hpp"
#include "../threads/scratch.hpp"
#include "plan.hpp"
#include "run_task.hpp"

namespace regard {
namespace {

TangentTask tangent_task(const TangentProblem& problem, const AttentionTask& forward) {
  const HeadPlace place(problem.forward, forward.entry,
                        forward.first_head / (problem.forward.heads / problem.forward.kv_heads));
  TangentTask task{};
  task.forward = forward;
  task.tangent_query = place.of_queries(problem.tangent_query);
  task.tangent_key = place.of_keys(problem.tangent_key);
  task.tangent_value = place.of_keys(problem.tangent_value);
  task.tangent_output = place.of_queries(problem.tangent_output);
  task.tangent_lse = place.of_queries(problem.tangent_lse);
  return task;
}

}  // namespace

void attention_tangent(const TangentProblem& problem, int threads, const StopSignal& signal) {
  const AttentionProblem& forward = problem.forward;
  if (forward.batch.count == 0 || forward.heads == 0 || forward.q_len == 0) return;
  check_dims(forward);
  const Kernels& kernels = kernels_for(active_target(), forward.scalar);
  const TangentKernels& kernel = kernels.tangent;
  threads = threads_for(3 * work_of(forward), threads);
  const AttentionTasks tasks(forward, kernels, threads);
  threads = static_cast<int>(std::min<std::int64_t>(threads, tasks.count()));
  const double work_of_block = 3 * static_cast<double>(tasks.most_rows()) *
                               static_cast<double>(forward.head_dim + forward.value_dim) *
                               static_cast<double>(kernels.attention.block_keys);
  const std::int64_t interval = interval_of(kernels.attention.block_keys, work_of_block);
  const Scratch scratch(threads, kernel.workspace_bytes(problem, tasks.most_rows()));
  parallel_for(threads, tasks.count(), signal, [&](std::int64_t index, Worker& worker) {
    const TangentTask task = tangent_task(problem, tasks.at(index));
    run_pass(kernel, problem, task, interval, worker, scratch.of(worker));
  });
}

}  // namespace regard
