// The dispatch's interface to the backward family.
//
// The keys of a kv head are split into chunks, whose number depends only on the lengths. A chunk's
// task owns the gradients of its keys. Its contribution to the gradients of queries goes into a
// separate partial, and the partials are summed in order. With one chunk there are no partials.
#pragma once

#include "../../problem/backward.hpp"

namespace regard {

struct BackwardKernels {
  std::int64_t (*workspace_bytes)(const BackwardProblem&);
  std::int64_t band_rows;   // intervals of rows begin at multiples of this many
  std::int64_t block_keys;  // number of keys in the smallest piece
  // Number of keys in a chunk of an entry with kv_len keys; the last chunk may have fewer.
  std::int64_t (*chunk_keys)(std::int64_t kv_len);
  // Number of keys that fit into the workspace. A task processes its chunk in pieces of this size.
  // More than one piece requires a partial.
  std::int64_t (*piece_keys)(const BackwardProblem&);
  std::int64_t (*partial_bytes)(const BackwardProblem&, std::int64_t rows);

  // For each piece of the task's chunk, call `begin`, then `advance` over the rows in order, then
  // `finish`.
  void (*begin)(const BackwardProblem&, const BackwardTask&, KeyInterval piece, void* workspace);
  void (*advance)(const BackwardProblem&, const BackwardTask&, std::int64_t row_begin,
                  std::int64_t row_end, void* workspace);
  void (*finish)(const BackwardProblem&, const BackwardTask&, void* workspace);
  // Writes zeros to the gradients of an interval of keys.
  void (*clear)(const BackwardProblem&, const BackwardTask&, KeyInterval keys);
  // Sums the partials of all chunks for the task's rows. The partials are `partial_bytes` apart,
  // starting at the task's partial.
  void (*sum_partials)(const BackwardProblem&, const BackwardTask&, std::int64_t partial_bytes,
                       void* workspace);
  // Writes D for the task's rows.
  void (*write_deltas)(const BackwardProblem&, const BackwardTask&, void* workspace);
  // Adds the gradients of a piece to grad_bias. Call it after `begin`.
  void (*add_to_bias)(const BackwardProblem&, const BackwardTask&, std::int64_t row_begin,
                      std::int64_t row_end, void* workspace);
};

}  // namespace regard
