// Merges attention states over disjoint sets of keys, on the active target.
#pragma once

#include "../problem/rows.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's output and lse. Throws NoMemory before it writes anything, or Stopped.
void merge_states(const MergeProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
