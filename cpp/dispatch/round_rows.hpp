// Rows in 8 bits, on the active target.
#pragma once

#include "../problem.hpp"
#include "parallel_for.hpp"

namespace regard {

// Fills the problem's rows and scales. Throws NoMemory before anything is written, or Stopped.
void round_rows(const RoundProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
