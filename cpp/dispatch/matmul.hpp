// Batched matrix product on the active target.
#pragma once

#include "../problem.hpp"
#include "parallel_for.hpp"

namespace regard {

// Fills c. Throws NoMemory before anything is written, or Stopped.
void matmul(const MatmulProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
