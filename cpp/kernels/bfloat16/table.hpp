// The bfloat16 family as the dispatch calls it: attention and its gradients, whose products are of
// bfloat16 numbers.
#pragma once

#include "../attention_kernel.hpp"
#include "../backward/table.hpp"

namespace regard {

// Everything is null in float64, and where the target has no instruction that makes this faster
// than float32.
struct Bfloat16Kernels {
  // What multiplies: a feature that the CPU must have, as CPUs list it.
  const char* instruction;
  AttentionKernel attention;
  WriteWeights write_weights;
  BackwardKernels backward;
};

}  // namespace regard
