// The dispatch's interface to the attention family.
#pragma once

#include "../attention_kernel.hpp"

namespace regard {

struct AttentionKernels {
  AttentionKernel forward;
  WriteWeights write_weights;
  std::int64_t (*task_rows)(const AttentionProblem&);  // maximum number of rows in a task
  std::int64_t (*row_unit)(const AttentionProblem&);   // tasks begin at multiples of this many rows
  // For every attention kernel, intervals of keys begin at multiples of a block, and chunks at
  // multiples of a chunk.
  std::int64_t block_keys;
  std::int64_t chunk_keys;
};

}  // namespace regard
