// One task from beginning to end.
#pragma once

#include <algorithm>

#include "../../kernels/kernel_table.hpp"
#include "../../problem/attention.hpp"
#include "../threads/parallel_for.hpp"

namespace regard {

// Calls body(begin, end) over keys in intervals of whole blocks, until told to stop.
template <class Body>
void over_intervals(KeyInterval keys, std::int64_t interval, Worker& worker, Body body) {
  for (std::int64_t begin = keys.begin; begin < keys.end && !worker.should_stop();
       begin += interval)
    body(begin, std::min(keys.end, begin + interval));
}

template <class Problem, class Task>
void run_pass(const PassKernels<Problem, Task>& kernels, const Problem& problem, const Task& task,
              std::int64_t interval, Worker& worker, void* workspace) {
  const SeenKeys seen = kernels.begin(problem, task, workspace);
  for (const KeyInterval& keys : {seen.keep_first, seen.window})
    over_intervals(keys, interval, worker, [&](std::int64_t begin, std::int64_t end) {
      kernels.advance(problem, task, begin, end, workspace);
    });
  kernels.finish(problem, task, workspace);
}

inline void run_task(const AttentionKernel& kernel, const AttentionProblem& problem,
                     const AttentionTask& task, std::int64_t interval, Worker& worker,
                     void* workspace) {
  run_pass(kernel.pass, problem, task, interval, worker, workspace);
  if (task.weights)
    over_intervals({0, problem.kv_len}, interval, worker,
                   [&](std::int64_t begin, std::int64_t end) {
                     kernel.write_weights(problem, task, begin, end, workspace);
                   });
}

}  // namespace regard
