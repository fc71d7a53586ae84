// The dispatch's interface to an attention kernel, in the families attention, decode, int8
// and bfloat16.
#pragma once

#include "../problem/attention.hpp"

namespace regard {

// To compute a task, call these functions with a workspace of `workspace_bytes` bytes, aligned to
// 64: first `begin`, then `advance` over consecutive intervals of the keys that `begin` returns,
// sink tokens first, then `finish`. Sink tokens and the window both begin at whole blocks, and no
// chunk of keys contains parts of both.
struct AttentionKernel {
  std::int64_t (*workspace_bytes)(const AttentionProblem&, std::int64_t task_rows);
  SeenKeys (*begin)(const AttentionProblem&, const AttentionTask&, void* workspace);
  void (*advance)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                  std::int64_t key_end, void* workspace);
  void (*finish)(const AttentionProblem&, const AttentionTask&, void* workspace);
  // Whether the kernel must copy keys or values because it cannot read them in place, and how many
  // columns it reads at a time.
  bool (*copies_keys)(const AttentionProblem&);
  bool (*copies_values)(const AttentionProblem&);
  std::int64_t columns;
  // Count the work of a task. `begin_count` returns keys as `begin` does. `count` adds the work for
  // a part of an interval, starting at the interval's beginning. It returns the key at which it
  // stopped to let the caller check the stop signal. Neither function reads any column of an array.
  SeenKeys (*begin_count)(const AttentionProblem&, const AttentionTask&, TileCounts&,
                          void* workspace);
  std::int64_t (*count)(const AttentionProblem&, const AttentionTask&, KeyInterval, TileCounts&,
                        void* workspace);
  std::int64_t tile_rows;  // at most
  std::int64_t tile_keys;
};

// Writes the weights of an interval of keys. Call it after `finish`.
using WriteWeights = void (*)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                              std::int64_t key_end, void* workspace);

}  // namespace regard
