// Rows in fewer bits, on the active target.
#pragma once

#include "../problem/rows.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's rows and scales; false if there is a number that the type does not hold. Throws NoMemory before
// anything is written, or Stopped.
bool quantize_rows(const QuantizeProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
