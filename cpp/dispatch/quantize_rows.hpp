// Rows in 8 bits, on the active target.
#pragma once

#include "../problem/rows.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's rows and scales. Throws NoMemory before anything is written, or Stopped.
void quantize_rows(const QuantizeProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
