// The dispatch's interface to the decode family: attention for a few rows.
#pragma once

#include "../attention_kernel.hpp"

namespace regard {

struct DecodeKernels {
  AttentionKernel kernel;
  // Merges the chunk that `part` has accumulated with the earlier chunks in `workspace`. Call
  // `begin` on both first.
  void (*merge)(const void* part, void* workspace);
  std::int64_t most_rows;  // maximum number of rows in a task
  bool reads_four_bits;    // whether keys and values may be q4_1
};

}  // namespace regard
