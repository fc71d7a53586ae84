// The arguments of the kernels, by value: the problem, and values that the host derives from it.
#pragma once

#include "problem.hpp"

namespace regard::cuda {

constexpr int kThreads = 128;    // per block
constexpr int kTileRows = 64;    // query rows per block
constexpr int kChunkKeys = 512;  // keys per block if they are split among blocks

// The rows of a key head are ordered by query, and then by head within the group, so that one pass
// over keys and values serves all heads of the group.
struct Arguments {
  AttentionProblem problem;

  // score = (query . key) product_scale, or softcap tanh((query . key) product_scale) if softcap is
  // not 0.
  float product_scale;
  float softcap;

  // Whether rows may be read 16 bytes at a time, and results written in pairs.
  bool query_is_aligned;
  bool key_is_aligned;
  bool value_is_aligned;
  bool output_is_paired;

  std::int32_t row_tiles;  // of a key head of the longest sequence
  std::int32_t chunks;     // of keys: 1 if they are not split

  // If keys are split, the state of row r of chunk c of key head h of entry b has the index ((b
  // kv_heads + h) rows + r) chunks + c in these arrays. Otherwise they are null.
  float* chunk_outputs;  // [state][value_dim], to be divided by the sum
  float* chunk_states;   // [state][2]: the reference and the sum
};

}  // namespace regard::cuda
