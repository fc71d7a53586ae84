// The dispatch's interface to the groups family: attention with keys and values in groups of
// four-bit integers (../groups_of_four_bits.hpp).
#pragma once

#include "../attention_kernel.hpp"

namespace regard {

struct GroupKernels {
  AttentionKernel attention;
  WriteWeights write_weights;
};

}  // namespace regard
