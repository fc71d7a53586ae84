// The gradients of attention.
#pragma once

#include "../../problem/backward.hpp"
#include "../threads/parallel_for.hpp"

namespace regard {

// Fills the problem's gradients. `threads` is an upper bound. Throws NoMemory or Stopped.
void attention_gradients(const BackwardProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
