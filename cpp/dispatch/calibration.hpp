// What this machine can do at best, measured: the yardstick beside every benchmark.
#pragma once

#include "../problem.hpp"
#include "parallel_for.hpp"

namespace regard {

// Floating-point operations a second of `threads` threads doing nothing but fma on the active target,
// the best of several tries.
double fma_peak(Scalar scalar, int threads, const StopSignal& signal);

}  // namespace regard
