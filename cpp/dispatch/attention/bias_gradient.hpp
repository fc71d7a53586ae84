// The gradient of a float mask.
#pragma once

#include "../../kernels/kernel_table.hpp"
#include "../threads/parallel_for.hpp"
#include "../threads/scratch.hpp"
#include "backward_heads.hpp"

namespace regard {

// Adds the gradients of all scores to grad_bias. `interval` is the number of rows that a thread
// computes between two checks of the stop signal.
void add_bias_gradient(const BackwardHeads& heads, const BackwardKernels& kernels, int threads, std::int64_t interval,
                       const Scratch& scratch, const StopSignal& signal);

}  // namespace regard
