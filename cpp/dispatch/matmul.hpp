// Batched matrix product on the active target.
#pragma once

#include "../problem/matmul.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills c. Throws NoMemory before it writes anything, or Stopped.
void matrix_product(const MatmulProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
