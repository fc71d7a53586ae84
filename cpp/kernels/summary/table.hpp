// The dispatch's interface to the summary family: statistics and images of attention weights.
#pragma once

#include "../../problem/summary.hpp"

namespace regard {

// A task consists of some rows of one query head. To compute it, call these functions with a
// workspace of `workspace_bytes` bytes, aligned to 64: first `begin`, then `advance` over
// consecutive intervals of the keys that `begin` returns, sink tokens first, then `finish`.
// Intervals begin at whole blocks. In the problem passed to these functions, heads and kv_heads are
// 1.
struct SummaryKernels {
  std::int64_t (*workspace_bytes)(const SummaryProblem&, std::int64_t task_rows);
  SeenKeys (*begin)(const SummaryProblem&, const SummaryTask&, void* workspace);
  void (*advance)(const SummaryProblem&, const SummaryTask&, std::int64_t key_begin,
                  std::int64_t key_end, void* workspace);
  void (*finish)(const SummaryProblem&, const SummaryTask&, void* workspace);
};

}  // namespace regard
