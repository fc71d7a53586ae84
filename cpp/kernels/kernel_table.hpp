// What a target offers: the kernels of one element type, and both types under the target's name.
// The dispatch knows a target by nothing else.
#pragma once

#include "../problem/attention.hpp"
#include "../problem/matmul.hpp"
#include "../problem/rows.hpp"

namespace regard {

// A way to compute a task: in a workspace of so many bytes, aligned to 64, `begin`, then `advance` over
// consecutive intervals of the keys that it returns, sink tokens first, then `finish`. Both of these
// begin at whole blocks, and no chunk of keys has a part in each.
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
  // What it would compute, tile by tile; reads no column of an array.
  TileCounts (*count)(const AttentionProblem&, const AttentionTask&, void* workspace);
  std::int64_t tile_rows;  // at most
  std::int64_t tile_keys;
};

// The forward kernel over queries and keys in int8. Null where the target has none.
struct Int8Attention {
  AttentionKernel kernel;
  // As attention_weights, after its `finish`.
  void (*weights)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                  std::int64_t key_end, void* workspace);
  const char* instruction;  // the CPU must have it; null where the target's features suffice
};

// Brings the keys of one kv head to int8, into memory of so many bytes, aligned to 64, that begins with
// an Int8Keys: `begin`, then `add_to_mean` over all keys and `quantise` over all keys, in consecutive
// intervals. Of a task they read the keys and where these lie.
struct Int8Quantiser {
  std::int64_t (*bytes)(const AttentionProblem&, std::int64_t kv_len);
  void (*begin)(const AttentionProblem&, std::int64_t kv_len, void* memory);
  void (*add_to_mean)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                      std::int64_t key_end, void* memory);
  void (*quantise)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                   std::int64_t key_end, void* memory);
};

struct Kernels {
  AttentionKernel forward;
  AttentionKernel decode;                                        // tasks of at most decode_rows rows
  // After `begin` of both: what `part` has gathered of one chunk joins what `workspace` has of those
  // before.
  void (*decode_merge)(const void* part, void* workspace);
  std::int64_t decode_rows;
  std::int64_t chunk_keys;  // chunks begin at multiples of this
  std::int64_t (*attention_task_rows)(const AttentionProblem&);  // at most so many a task
  std::int64_t (*attention_row_unit)(const AttentionProblem&);   // a task's rows come in this many
  // After the forward kernel's `finish`.
  void (*attention_weights)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                            std::int64_t key_end, void* workspace);
  std::int64_t block_keys;   // intervals of keys begin at multiples of this
  std::int64_t strip_lanes;  // a strip has at most so many rows

  // Precision::int8, of float32 alone: by an instruction for it, and without.
  Int8Attention int8_dot;
  Int8Attention int8;
  Int8Quantiser int8_quantiser;

  std::int64_t (*matmul_workspace_bytes)(const MatmulProblem&);
  void (*matmul)(const MatmulProblem&, const MatmulTask&, void* workspace);
  std::int64_t matmul_task_rows;
  std::int64_t matmul_task_columns;
  std::int64_t matmul_depth;  // intervals of depth begin at multiples of this

  void (*stage)(const StageProblem&, const StageRow&);

  // `shares` has room for [parts][kMergeRows].
  void (*merge)(const MergeProblem&, const MergeRows&, double* shares);

  // The rows from `begin` to `end`, of float32 whatever the scalar type. `row` has room for one.
  void (*quantise_rows)(const QuantiseProblem&, std::int64_t begin, std::int64_t end, float* row);

  // Writes `columns` elements that lie side by side; true if a finite number became infinite.
  bool (*convert_row)(Element from_element, Element to_element, const void* from, void* to,
                      std::int64_t columns);

  // to[i] = 2^from[i] for `vectors` whole vectors, of the scalar type; for tests of its accuracy.
  void (*exp2)(const void* from, void* to, std::int64_t vectors);
  // Likewise tanh(from[i] / (2 log2(e))).
  void (*tanh_of_log2_units)(const void* from, void* to, std::int64_t vectors);

  // Multiplies and adds in registers for `steps` rounds; returns the floating-point operations.
  double (*fma_rounds)(std::int64_t steps);

  // Reads `bytes` from memory aligned to 64 and nothing else; `bytes` is a multiple of 512.
  void (*read_bytes)(const void* from, std::int64_t bytes);
};

struct Target {
  const char* name;
  int vector_bytes;
  Kernels float32;
  Kernels float64;
};

}  // namespace regard
