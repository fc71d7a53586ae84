// The derivative of attention along a direction.
#pragma once

#include "../../problem/tangent.hpp"
#include "../threads/parallel_for.hpp"

namespace regard {

// Fills the problem's output, lse and their tangents. `threads` is an upper bound. Throws NoMemory
// before it writes anything, or Stopped.
void attention_tangent(const TangentProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
