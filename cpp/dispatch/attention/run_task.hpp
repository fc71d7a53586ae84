// One task from beginning to end.
#pragma once

#include <algorithm>

#include "../../kernels/attention_kernel.hpp"
#include "../../problem/attention.hpp"
#include "../threads/parallel_for.hpp"

namespace regard {

// A kernel, and the kernel that writes the weights after it.
struct AttentionRun {
  const AttentionKernel& kernel;
  WriteWeights write_weights;
  std::int64_t interval;  // keys between two checks of the stop signal: whole blocks
};

// Calls body(begin, end) over keys in intervals, until told to stop.
template <class Body>
void over_intervals(KeyInterval keys, std::int64_t interval, Worker& worker, Body body) {
  for (std::int64_t begin = keys.begin; begin < keys.end && !worker.should_stop();
       begin += interval)
    body(begin, std::min(keys.end, begin + interval));
}

inline void run_task(const AttentionProblem& problem, const AttentionTask& task,
                     const AttentionRun& run, Worker& worker, void* workspace) {
  const AttentionKernel& kernel = run.kernel;
  const SeenKeys seen = kernel.begin(problem, task, workspace);
  for (const KeyInterval& keys : {seen.keep_first, seen.window})
    over_intervals(keys, run.interval, worker, [&](std::int64_t begin, std::int64_t end) {
      kernel.advance(problem, task, begin, end, workspace);
    });
  kernel.finish(problem, task, workspace);
  if (task.weights)
    over_intervals({0, problem.kv_len}, run.interval, worker,
                   [&](std::int64_t begin, std::int64_t end) {
                     run.write_weights(problem, task, begin, end, workspace);
                   });
}

}  // namespace regard
