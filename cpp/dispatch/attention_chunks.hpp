// Decoding where there are few key heads, and not a whole number of them for each thread: threads share the
// keys of one head.
#pragma once

#include "attention_tasks.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// True where whole heads would leave threads with nothing to do for long.
bool shares_chunks(const AttentionProblem& problem, const Kernels& kernels,
                   const AttentionTasks& tasks, int threads);

// How many workspaces it takes: for what each task has gathered, and for the chunks at hand.
std::int64_t chunk_workspaces(const AttentionTasks& tasks, int threads);

// Computes all tasks with the decode kernel, `interval` keys between two looks at `signal`. Chunks of
// keys are gathered in any order and joined in theirs, so that the bits are those of one thread.
void decode_in_chunks(const AttentionProblem& problem, const Kernels& kernels,
                      const AttentionTasks& tasks, int threads, std::int64_t interval,
                      const StopSignal& signal);

}  // namespace regard
