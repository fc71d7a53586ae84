// Attention states over disjoint sets of keys, joined, on the active target.
#pragma once

#include "../problem/rows.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's output and lse. Throws NoMemory before anything is written, or Stopped.
void merge_states(const MergeProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
