// The backward family as the dispatch calls it.
//
// The keys of a kv head are cut into chunks; their number depends only on the lengths. A chunk's
// task owns the gradients of its keys. What it adds to the gradients of queries goes into a
// separate partial, and the partials are summed in order. With one chunk there are no partials.
#pragma once

#include "../../problem/backward.hpp"

namespace regard {

struct BackwardKernels {
  std::int64_t (*workspace_bytes)(const BackwardProblem&);
  std::int64_t band_rows;   // intervals of rows begin at multiples of this many
  std::int64_t block_keys;  // of the smallest piece
  // Of an entry with this many keys; the last chunk may have fewer.
  std::int64_t (*chunk_keys)(std::int64_t kv_len);
  // Keys that fit into the workspace: a task goes through its chunk in pieces of this many. More
  // than one piece needs a partial.
  std::int64_t (*piece_keys)(const BackwardProblem&);
  std::int64_t (*partial_bytes)(const BackwardProblem&, std::int64_t rows);

  // For each piece of the task's chunk `begin`, then `advance` over the rows in order, then
  // `finish`.
  void (*begin)(const BackwardProblem&, const BackwardTask&, KeyInterval piece, void* workspace);
  void (*advance)(const BackwardProblem&, const BackwardTask&, std::int64_t row_begin,
                  std::int64_t row_end, void* workspace);
  void (*finish)(const BackwardProblem&, const BackwardTask&, void* workspace);
  // Writes zeros to the gradients of the keys of an interval.
  void (*clear)(const BackwardProblem&, const BackwardTask&, KeyInterval keys);
  // Sums the partials of all chunks, which lie `partial_bytes` apart from the task's on, for the
  // task's rows.
  void (*sum_partials)(const BackwardProblem&, const BackwardTask&, std::int64_t partial_bytes,
                       void* workspace);
  // Writes D for the task's rows.
  void (*write_deltas)(const BackwardProblem&, const BackwardTask&, void* workspace);
  // Adds a piece's gradients to grad_bias, after `begin`.
  void (*add_to_bias)(const BackwardProblem&, const BackwardTask&, std::int64_t row_begin,
                      std::int64_t row_end, void* workspace);
};

}  // namespace regard
