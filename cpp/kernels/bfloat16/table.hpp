// The dispatch's interface to the bfloat16 family: attention and its gradients, with products of
// bfloat16 numbers.
#pragma once

#include "../attention_kernel.hpp"
#include "../backward/table.hpp"

namespace regard {

// All members are null in float64, and if the target has no instruction that makes this faster than
// float32.
struct Bfloat16Kernels {
  // The multiply instruction: a feature that the CPU must have, by its name in CPU feature lists.
  const char* instruction;
  AttentionKernel attention;
  WriteWeights write_weights;
  BackwardKernels backward;
};

}  // namespace regard
