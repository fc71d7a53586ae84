// How an attention problem will be computed: decided once, then run or reported.
#pragma once

#include <cstdint>
#include <optional>

#include "../../kernels/kernel_table.hpp"
#include "../../problem/attention.hpp"
#include "../threads/parallel_for.hpp"
#include "int8_waves.hpp"
#include "tasks.hpp"

namespace regard {

enum class AttentionMethod {
  none,           // nothing to compute: the result is empty
  forward,        // queries in lanes
  decode,         // few rows: keys and values are streamed once for all of them
  int8,           // queries in lanes, keys rounded to int8 first
  bfloat16,       // queries in lanes, bfloat16 products
};

// A plan refers to the problem that it was made for.
struct AttentionPlan {
  const AttentionProblem* problem;
  const Target* target;
  const Kernels* kernels;  // of the target, for the problem's scalar type
  AttentionMethod method;
  const AttentionKernel* kernel;
  // Ragged: the kernel that decodes the entries with few rows while others have more; null if one
  // kernel serves all.
  const AttentionKernel* kernel_of_few_rows;
  bool shares_chunks;  // threads share the keys of a task (chunks.hpp)
  // The rows that one thread computes at a time; none if there is nothing to compute.
  std::optional<AttentionTasks> tasks;
  std::optional<Int8Waves> waves;  // only for int8
  int threads = 1;
  std::int64_t interval = 0;            // keys between two checks of the stop signal: whole blocks
  std::int64_t bytes_of_workspace = 0;  // each
  std::int64_t workspaces = 0;
  double work = 0;  // multiplications, at most

  const AttentionKernel& kernel_of(std::int64_t entry) const;
  std::int64_t workspace_bytes() const {
    return workspaces * bytes_of_workspace + (waves ? waves->bytes : 0);
  }
};

// Throws NoMemory if rows are so long that sizes in bytes might not fit in 64 bits.
void check_dims(std::int64_t head_dim, std::int64_t value_dim, Scalar scalar);
inline void check_dims(const AttentionProblem& problem) {
  check_dims(problem.head_dim, problem.value_dim, problem.scalar);
}

// Whether a key head serves so few rows that memory bandwidth limits the call; if ragged, in all
// entries.
bool has_few_rows(const AttentionProblem& problem, const Kernels& kernels);

// Whether products are computed in bfloat16: if it is allowed and faster. Forward and backward
// calls of one problem agree, whatever else they return.
bool multiplies_bfloat16(const AttentionProblem& problem, const Kernels& kernels);

// Number of entries of a ragged problem that have few rows and decode although others do not.
std::int64_t entries_of_few_rows(const AttentionPlan& plan);

// The largest number of keys that a row sees by position.
double most_keys_of_row(const AttentionProblem& problem);

// Upper bound on the multiplications of the forward call.
double work_of(const AttentionProblem& problem);

// `threads` is an upper bound. Throws NoMemory if sizes in bytes might not fit in 64 bits.
AttentionPlan plan_attention(const AttentionProblem& problem, int threads);

// Counts the tiles that the plan's kernel would compute. Reads masks, but neither keys nor values.
TileCounts count_tiles(const AttentionPlan& plan, const StopSignal& signal);

// Fills the problem's output, weights and lse. Throws NoMemory before it writes anything, or
// Stopped.
void run_attention(const AttentionPlan& plan, const StopSignal& signal);

inline void attention_forward(const AttentionProblem& problem, int threads, const StopSignal& signal) {
  run_attention(plan_attention(problem, threads), signal);
}

}  // namespace regard
