// The int8 family as the dispatch calls it: attention with queries and keys in int8, computed in float32.
#pragma once

#include "../attention/table.hpp"

namespace regard {

// A forward kernel. Its functions are null where the target has none.
struct Int8Attention {
  AttentionKernel kernel;
  WriteWeights write_weights;
  // What multiplies the integers: a feature as CPUs list it, or pmaddwd; null where float32's products do.
  const char* instruction;
};

// Quantises the keys of one kv head into memory of `bytes` bytes, aligned to 64, that begins with an
// Int8Keys: `begin`, then `add_to_mean` over all keys and `quantise` over all keys, in consecutive
// intervals. Of a task they read the keys and where these lie.
struct Int8Quantiser {
  std::int64_t (*bytes)(const AttentionProblem&, std::int64_t kv_len);
  void (*begin)(const AttentionProblem&, std::int64_t kv_len, void* memory);
  void (*add_to_mean)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                      std::int64_t key_end, void* memory);
  void (*quantise)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                   std::int64_t key_end, void* memory);
};

struct Int8Kernels {
  Int8Attention by_feature;  // for CPUs that have the feature
  Int8Attention by_target;   // for any CPU of the target
  Int8Quantiser quantiser;
};

}  // namespace regard
