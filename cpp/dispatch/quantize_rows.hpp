// Quantizes rows to fewer bits, on the active target.
#pragma once

#include "../problem/rows.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's rows and scales; returns false if the type cannot represent a number. Throws
// NoMemory before it writes anything, or Stopped.
bool quantize_rows(const QuantizeProblem& problem, int threads, const StopSignal& signal);

}  // namespace regard
