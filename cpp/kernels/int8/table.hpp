// The dispatch's interface to the int8 family: attention with queries and keys in int8, computed in
// float32.
#pragma once

#include "../attention_kernel.hpp"

namespace regard {

// Quantizes the keys of one kv head into memory of `bytes` bytes, aligned to 64, that begins with
// an Int8Keys. Call `begin`, then `add_to_mean` over all keys, then `quantize` over all keys, in
// consecutive intervals. Of a task, these functions use only the keys and their location.
struct Int8Quantizer {
  std::int64_t (*bytes)(const AttentionProblem&, std::int64_t kv_len);
  void (*begin)(const AttentionProblem&, std::int64_t kv_len, void* memory);
  void (*add_to_mean)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                      std::int64_t key_end, void* memory);
  void (*quantize)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                   std::int64_t key_end, void* memory);
};

// All members are null in float64, and if the target has no instruction that makes this faster than
// float32.
struct Int8Kernels {
  // The integer multiply instruction: a feature that the CPU must have, by its name in CPU feature
  // lists.
  const char* instruction;
  AttentionKernel attention;
  WriteWeights write_weights;
  Int8Quantizer quantizer;
};

}  // namespace regard
