// Few rows of few key heads, which cannot be divided evenly among the threads: threads share the
// keys of a task.
#pragma once

#include "plan.hpp"

namespace regard {

// Whether distributing whole heads would leave threads idle for long.
bool shares_chunks(const AttentionProblem& problem, const Kernels& kernels,
                   const AttentionTasks& tasks, int threads);

// Number of workspaces: one for the merged state of each task, and one for each chunk in progress.
std::int64_t chunk_workspaces(const AttentionProblem& problem, const Kernels& kernels, const AttentionTasks& tasks,
                              int threads);

// Runs a plan that shares chunks. Threads compute chunks of keys in any order. The
// chunks are merged in key order, so that the result has the same bits as with one thread.
void attention_in_chunks(const AttentionPlan& plan, const StopSignal& signal);

}  // namespace regard
