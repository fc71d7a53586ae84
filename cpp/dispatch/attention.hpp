// Attention as a whole: splits a problem into tasks and runs them on the active target.
#pragma once

#include "../problem.hpp"
#include "parallel_for.hpp"

namespace regard {

// Fills the problem's output, weights and lse. `threads` is an upper bound. Throws std::bad_alloc
// before anything is written, or Stopped.
void attention_forward(const AttentionProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
