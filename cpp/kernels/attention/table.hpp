// The attention family as the dispatch calls it.
#pragma once

#include "../attention_kernel.hpp"

namespace regard {

struct AttentionKernels {
  AttentionKernel forward;
  WriteWeights write_weights;
  std::int64_t (*task_rows)(const AttentionProblem&);  // the most rows of a task
  std::int64_t (*row_unit)(const AttentionProblem&);   // tasks begin at multiples of this many rows
  // Of every kernel: intervals of keys begin at multiples of a block, chunks at multiples of a
  // chunk.
  std::int64_t block_keys;
  std::int64_t chunk_keys;
};

}  // namespace regard
