// The decode family as the dispatch calls it: attention for a few rows.
#pragma once

#include "../attention_kernel.hpp"

namespace regard {

struct DecodeKernels {
  AttentionKernel kernel;
  // After `begin` of both: merges what `part` has gathered of one chunk with what `workspace` has
  // of those before.
  void (*merge)(const void* part, void* workspace);
  std::int64_t most_rows;  // of a task
  bool reads_four_bits;    // whether keys and values may be q4_1
};

}  // namespace regard
