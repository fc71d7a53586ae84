// Attention as a whole: splits a problem into tasks and runs them on the active target.
#pragma once

#include "../problem/attention.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Fills the problem's output, weights and lse. `threads` is an upper bound. Throws NoMemory
// before anything is written, or Stopped.
void attention_forward(const AttentionProblem& problem, int threads, const StopSignal& signal);

// What attention_forward would do.
struct AttentionPlan {
  const char* target;
  int threads;
  std::int64_t tasks;
  std::int64_t chunk_keys;  // a task is a chunk of so many keys at most; 0 where it has all keys
  std::int64_t strip_rows;  // query rows of one tile
  std::int64_t tile_keys;
  std::int64_t block_keys;
  std::int64_t task_rows;
  bool is_decode;  // few rows: keys and values are streamed once for all of them
  bool is_int8;
  const char* int8_instruction;  // that scores in int8 come by; null where they do without
  std::int64_t workspace_bytes;  // of all threads, and of keys in int8
  std::int64_t columns;  // of values, read at a time
  bool copies_keys;
  bool copies_values;
  TileCounts tiles;
};

AttentionPlan plan_attention(const AttentionProblem& problem, int threads,
                             const StopSignal& signal);

}  // namespace regard
