// Decoding where there are few key heads, and not a whole number of them for each thread: threads share the
// keys of one head.
#pragma once

#include "plan.hpp"

namespace regard {

// Whether whole heads would leave threads with nothing to do for long.
bool shares_chunks(const AttentionProblem& problem, const Kernels& kernels,
                   const AttentionTasks& tasks, int threads);

// How many workspaces it takes: one for what each task has gathered, and one for each chunk at hand.
std::int64_t chunk_workspaces(const AttentionProblem& problem, const Kernels& kernels, const AttentionTasks& tasks,
                              int threads);

// Runs a plan of AttentionMethod::decode_chunks. Threads compute chunks of keys in any order, and the chunks
// are merged in theirs, so that the bits are those of one thread.
void decode_in_chunks(const AttentionPlan& plan, const StopSignal& signal);

}  // namespace regard
