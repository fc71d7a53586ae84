// A kernel of attention as the dispatch calls it: those of the families attention, decode, int8 and
// bfloat16.
#pragma once

#include "../problem/attention.hpp"

namespace regard {

// A way to compute a task: in a workspace of `workspace_bytes`, aligned to 64, `begin`, then
// `advance` over consecutive intervals of the keys that it returns, sink tokens first, then
// `finish`. Both of these begin at whole blocks, and no chunk of keys has a part in each.
struct AttentionKernel {
  std::int64_t (*workspace_bytes)(const AttentionProblem&, std::int64_t task_rows);
  SeenKeys (*begin)(const AttentionProblem&, const AttentionTask&, void* workspace);
  void (*advance)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                  std::int64_t key_end, void* workspace);
  void (*finish)(const AttentionProblem&, const AttentionTask&, void* workspace);
  // What of the arrays it cannot read where they lie, and how many columns it reads at a time.
  bool (*copies_keys)(const AttentionProblem&);
  bool (*copies_values)(const AttentionProblem&);
  std::int64_t columns;
  // What it would compute: `begin_count` returns keys as `begin` does, and `count` adds some of an
  // interval's from its begin on. It returns where it stopped, when it is time to look at the stop
  // signal. Both read no column of an array.
  SeenKeys (*begin_count)(const AttentionProblem&, const AttentionTask&, TileCounts&,
                          void* workspace);
  std::int64_t (*count)(const AttentionProblem&, const AttentionTask&, KeyInterval, TileCounts&,
                        void* workspace);
  std::int64_t tile_rows;  // at most
  std::int64_t tile_keys;
};

// Writes the weights of the keys of an interval, after `finish`.
using WriteWeights = void (*)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                              std::int64_t key_end, void* workspace);

}  // namespace regard
