// The functions of the summary family, as the dispatch calls them: statistics and pictures of
// attention's weights.
#pragma once

#include "../../problem/summary.hpp"

namespace regard {

// A task is some rows of one query head, computed in a workspace of `workspace_bytes`, aligned to
// 64: `begin`, then `advance` over consecutive intervals of the keys that it returns, sink tokens
// first, then `finish`. Intervals begin at whole blocks. In the problem that they get, heads and
// kv_heads are 1.
struct SummaryKernels {
  std::int64_t (*workspace_bytes)(const SummaryProblem&, std::int64_t task_rows);
  SeenKeys (*begin)(const SummaryProblem&, const SummaryTask&, void* workspace);
  void (*advance)(const SummaryProblem&, const SummaryTask&, std::int64_t key_begin,
                  std::int64_t key_end, void* workspace);
  void (*finish)(const SummaryProblem&, const SummaryTask&, void* workspace);
};

}  // namespace regard
