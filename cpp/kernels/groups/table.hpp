// The groups family as the dispatch calls it: attention to keys and values in groups of four-bit
// integers (../groups_of_four_bits.hpp).
#pragma once

#include "../attention_kernel.hpp"

namespace regard {

struct GroupKernels {
  AttentionKernel attention;
  WriteWeights write_weights;
};

}  // namespace regard
