// The elementwise stages, row by row, on the active target.
#pragma once

#include "../problem/rows.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's output. Throws Stopped.
void run_stage(const StageProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
