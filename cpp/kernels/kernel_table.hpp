// The dispatch's interface to the kernels: a table of functions per family, one instance for each
// element type, and all of a target under its name. The dispatch calls a target only through this.
#pragma once

#include "../problem/attention.hpp"
#include "../problem/backward.hpp"
#include "../problem/linear.hpp"
#include "../problem/matmul.hpp"
#include "../problem/rows.hpp"
#include "../problem/selection.hpp"
#include "../problem/summary.hpp"
#include "../problem/tangent.hpp"

namespace regard {

// To compute a task, call these functions with a workspace of `workspace_bytes` bytes, aligned to
// 64: first `begin`, then `advance` over consecutive intervals of the keys that `begin` returns,
// sink tokens first, then `finish`. Intervals begin at whole blocks, and no chunk of keys contains
// parts of both sink tokens and window.
template <class Problem, class Task>
struct PassKernels {
  std::int64_t (*workspace_bytes)(const Problem&, std::int64_t task_rows);
  SeenKeys (*begin)(const Problem&, const Task&, void* workspace);
  void (*advance)(const Problem&, const Task&, std::int64_t key_begin, std::int64_t key_end,
                  void* workspace);
  void (*finish)(const Problem&, const Task&, void* workspace);
};

// The derivative of attention along a direction.
using TangentKernels = PassKernels<TangentProblem, TangentTask>;

// The index of queries and keys, by which a call selects the keys of each query. A task consists of
// whole queries, at most `task_queries`. After `begin`, `index` may be called for any intervals of
// the keys that begin at whole blocks; keys outside of what `begin` returns are hidden.
struct SelectionKernels {
  std::int64_t (*task_queries)(const SelectionProblem&);
  std::int64_t (*workspace_bytes)(const SelectionProblem&, std::int64_t queries);
  SeenKeys (*begin)(const SelectionProblem&, const SelectionTask&, void* workspace);
  // Writes to[query][key - key_begin], -inf for hidden keys, up to the end of a block. The rows of
  // `to` are `stride` elements apart.
  void (*index)(const SelectionProblem&, const SelectionTask&, std::int64_t key_begin,
                std::int64_t key_end, void* to, std::int64_t stride, void* workspace);
};

// Linear attention. The workspace depends on the number of columns of a task instead of rows, and
// intervals of tokens begin at whole chunks.
struct LinearKernels {
  PassKernels<LinearProblem, LinearTask> pass;
  std::int64_t column_unit;  // tasks begin at multiples of this many columns
  // Its intervals contain the chunks twice: first to compute their states, and then backwards.
  PassKernels<LinearBackwardProblem, LinearBackwardTask> backward;
};

// Statistics and images of attention weights. A task consists of rows of one query head; in the
// problem, heads and kv_heads are 1.
using SummaryKernels = PassKernels<SummaryProblem, SummaryTask>;

// One way to compute attention, in the families attention, decode, int8 and bfloat16.
struct AttentionKernel {
  PassKernels<AttentionProblem, AttentionTask> pass;
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
  // Writes the weights of an interval of keys. Call it after `finish`. Null in decode.
  void (*write_weights)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                        std::int64_t key_end, void* workspace);
  // Merges the chunk that `part` has accumulated with the earlier chunks in `workspace`. Call
  // `begin` on both first.
  void (*merge)(const void* part, void* workspace);
};

struct AttentionKernels {
  AttentionKernel forward;
  std::int64_t (*task_rows)(const AttentionProblem&);  // maximum number of rows in a task
  std::int64_t (*row_unit)(const AttentionProblem&);   // tasks begin at multiples of this many rows
  // For every attention kernel, intervals of keys begin at multiples of a block, and chunks at
  // multiples of a chunk.
  std::int64_t block_keys;
  std::int64_t chunk_keys;
};

// Attention for a few rows. All members are null in float64: few calls decode in float64, and the
// forward kernel returns the same bits.
struct DecodeKernels {
  AttentionKernel kernel;
  std::int64_t most_rows;  // maximum number of rows in a task
  bool reads_four_bits;    // whether keys and values may be q4_1
};

// Quantizes the keys of one kv head into memory of `bytes` bytes, aligned to 64, that begins with
// an Int8Keys. Call `begin`, then `add_to_mean` over all keys, then `quantize` over all keys, in
// consecutive intervals. Of a task, these functions use only the keys and their location.
struct Int8Quantizer {
  std::int64_t (*bytes)(const AttentionProblem&, std::int64_t kv_len);
  void (*begin)(const AttentionProblem&, std::int64_t kv_len, void* memory);
  void (*add_to_mean)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                      std::int64_t key_end, void* memory);
  void (*quantize)(const AttentionProblem&, const AttentionTask&, std::int64_t key_begin,
                   std::int64_t key_end, void* memory);
};

// All members are null in float64, and if the target has no instruction that makes this faster than
// float32.
struct Int8Kernels {
  // The integer multiply instruction: a feature that the CPU must have, by its name in CPU feature
  // lists.
  const char* instruction;
  AttentionKernel attention;
  Int8Quantizer quantizer;
};

// The keys of a kv head are split into chunks, whose number depends only on the lengths. A chunk's
// task owns the gradients of its keys. Its contribution to the gradients of queries goes into a
// separate partial, and the partials are summed in order. With one chunk there are no partials.
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

// Attention and its gradients with products of bfloat16 numbers. Null as Int8Kernels are.
struct Bfloat16Kernels {
  // The multiply instruction: a feature that the CPU must have, by its name in CPU feature lists.
  const char* instruction;
  AttentionKernel attention;
  BackwardKernels backward;
};

struct MatmulKernels {
  bool (*takes_few_rows)(const MatmulProblem&);  // then b is read in place; nothing is shared
  std::int64_t (*workspace_bytes)(const MatmulProblem&);
  void (*run)(const MatmulProblem&, const MatmulTask&, void* workspace);
  // Waves: the parts of a and b that several tasks read are packed once.
  std::int64_t (*wave_rows_bytes)(const MatmulWave&);
  std::int64_t (*wave_panels_bytes)(const MatmulWave&);
  void (*pack_rows)(const MatmulProblem&, const MatmulTask&, const MatmulWave&);
  void (*pack_panels)(const MatmulProblem&, const MatmulTask&, const MatmulWave&);
  void (*run_wave)(const MatmulProblem&, const MatmulTask&, const MatmulWave&, void* workspace);
  std::int64_t tile_rows;
  std::int64_t task_rows;  // maximum of a task, as is task_columns
  std::int64_t task_columns;
  std::int64_t panel_columns;  // columns are packed in panels of this many
  std::int64_t depth;          // intervals of depth begin at multiples of this
};

// Operations on arrays, row by row.
struct RowKernels {
  void (*stage)(const StageProblem&, const StageRows&);

  // `shares` has room for [parts][kMergeRows].
  void (*merge)(const MergeProblem&, const MergeRows&, double* shares);

  // Quantizes the rows from `begin` to `end`, which are float32 whatever the scalar type is.
  // Returns false if the type cannot hold some number. `row` has room for one row.
  bool (*quantize)(const QuantizeProblem&, std::int64_t begin, std::int64_t end, float* row);

  // Writes `columns` contiguous elements. Returns true if a finite number became infinite.
  bool (*convert)(Element from_element, Element to_element, const void* from, void* to,
                  std::int64_t columns);
};

// The peaks of one core.
struct RooflineKernels {
  // Runs `steps` rounds of multiplications and additions in registers; returns the number of
  // floating-point operations.
  double (*fma_rounds)(std::int64_t steps);

  // Reads `bytes` bytes of memory aligned to 64 and does nothing else; `bytes` is a multiple of
  // 512.
  void (*read_bytes)(const void* from, std::int64_t bytes);
};

struct Kernels {
#define REGARD_FAMILY(name, Table) const Table& name;
#include "families.inc"
#undef REGARD_FAMILY
};

template <class Table>
struct PerScalar {
  Table float32;
  Table float64;
};

struct Target {
  const char* name;
  int vector_bytes;
  Kernels float32;
  Kernels float64;
};

}  // namespace regard
