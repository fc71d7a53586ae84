// What a caller asks for, as plain data: pointers, strides, sizes and options.
//
// Filled in by the bindings, split into tasks by the dispatch, read by the kernels. Every stride is
// in elements of its own array and may be zero or negative; every index is 64 bits wide.
#pragma once

#include <cstdint>

namespace regard {

enum class Scalar { float32, float64 };  // what is computed in
enum class Element { boolean, int8, float16, bfloat16, int32, float32, float64, int64 };  // how it is stored

enum class Precision { full, int8 };  // of the products of queries and keys; full is the scalar's

constexpr int kMaxBatchAxes = 64;  // NumPy allows no more axes in all

// An array seen as (batch..., head, row, column). Broadcast axes have stride 0.
struct Operand {
  void* data;
  Element element;
  std::int64_t head_stride;
  std::int64_t row_stride;
  std::int64_t column_stride;
  std::int64_t batch_strides[kMaxBatchAxes];
  std::int64_t page_stride;  // where rows lie in pages
};

struct BatchShape {
  int axes;
  std::int64_t count;  // product of the sizes
  std::int64_t sizes[kMaxBatchAxes];
};

constexpr std::int64_t kUnbounded = -1;  // a window's side without an end

struct AttentionProblem {
  Scalar scalar;
  Precision precision;

  // Which keys a query sees: those from window_left before its position to window_right after it.
  // Causal is a window_right of 0.
  std::int64_t window_left;
  std::int64_t window_right;

  // How a score is formed.
  double scale;                // multiplies query . key
  double softcap;              // 0 means none
  const double* alibi_slopes;  // one a head, or null
  const double* sinks;         // one a head, or null

  BatchShape batch;
  std::int64_t heads;
  std::int64_t kv_heads;  // divides heads
  std::int64_t q_len;
  std::int64_t kv_len;
  std::int64_t head_dim;
  std::int64_t value_dim;

  // Ragged: sequence b of the batch has the rows query_starts[b] to query_starts[b + 1] of query,
  // mask, output, weights and lse, and the rows key_starts[b] to key_starts[b + 1] of key and value;
  // q_len and kv_len are then the longest. Null otherwise.
  const std::int64_t* query_starts;
  const std::int64_t* key_starts;

  Operand query;
  Operand key;
  Operand value;
  // What int8 stands for: an element is stored * scale of its row, and keys are such rows rotated, over the
  // size of a group (kernels/hadamard.hpp). Data is null where keys and values are not int8.
  Operand key_scales;
  Operand value_scales;
  // Where page_rows is not 0, keys, values and scales lie in pages of so many rows: row r of a batch entry
  // is row r % page_rows of page pages[entry][r / page_rows].
  Operand pages;
  std::int64_t page_rows;
  Operand mask;          // rows are queries, columns are keys; its heads are the query's; data may be null
  Operand output;
  Operand weights;       // data is null where the caller does not want them
  Operand lse;           // one element a row; data is null where the caller does not want it
  Operand query_offset;  // one int64 a batch entry
  Operand key_lengths;   // one int64 a batch entry; data is null where all have kv_len keys
};

constexpr std::int64_t kMostInt8Dim = 1024;  // head_dim, where precision is int8

// The keys of one kv head in int8, less their mean and rotated (kernels/int8_keys.hpp).
struct Int8Keys {
  const std::int8_t* rows;  // zeros follow each row and the last one, up to whole tiles
  std::int64_t row_bytes;
  const float* scales;
  const std::int32_t* corrections;  // -128 times a row's sum
  const float* mean;                // [head_dim]
};

// The query rows of one kv head that one thread owns. Row r is query r / group of head r % group:
// the heads of a group lie side by side, so that one pass over keys and values serves them all and
// the rows of a task see about the same keys when attention is causal.
struct AttentionTask {
  const void* query;  // of the group's first head, as are mask, output, weights and lse
  const void* key;
  const void* value;
  const float* key_scales;
  const float* value_scales;
  const std::int32_t* pages;
  const Int8Keys* int8_keys;  // null where precision is full
  const void* mask;
  void* output;
  void* weights;
  void* lse;
  std::int64_t first_head;
  std::int64_t query_offset;
  std::int64_t kv_len;  // the keys that this batch entry has
  std::int64_t row_begin;
  std::int64_t row_end;
};

struct KeyInterval {
  std::int64_t begin;
  std::int64_t end;
};

// How many tiles (the rows of a strip, or of a decode, x a few keys) a task would compute, and of what
// kind.
struct TileCounts {
  std::int64_t all;      // of the whole square
  std::int64_t visible;  // computed without a bias
  std::int64_t biased;   // computed with a bias or at an edge
  std::int64_t scores;   // that are computed
  std::int64_t chunks;   // of keys, which threads may share
};

// Rows without gaps, to be kept in 8 bits (kernels/round_rows.hpp).
struct RoundProblem {
  const float* from;
  std::int8_t* to;
  float* scales;  // one a row
  std::int64_t rows;
  std::int64_t columns;
  bool rotates;
};

// Rows that a cache keeps: `to` = `from`, each element rounded to the type of `to`, both of at most 32 bits
// or of one type. Rows are addressed through batch_strides; elements lie side by side.
struct StoreProblem {
  BatchShape rows;
  std::int64_t columns;
  Operand from;
  Operand to;
};

// c[row][column] = sum over k of a[row][k] b[k][column].
struct MatmulProblem {
  Scalar scalar;
  BatchShape batch;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t depth;
  Operand a;
  Operand b;
  Operand c;
};

struct MatmulTask {
  const void* a;
  const void* b;
  void* c;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t column_begin;
  std::int64_t column_end;
  std::int64_t depth_begin;  // 0 overwrites c, what follows adds to it
  std::int64_t depth_end;
};

enum class Stage { scale, apply_mask, softmax };

// A stage maps every row of the input to the same row of the output; an Operand's last batch axis,
// head and row are unused: rows are addressed through batch_strides, elements by column_stride.
struct StageProblem {
  Stage stage;
  Scalar scalar;
  double factor;
  BatchShape rows;
  std::int64_t columns;
  Operand input;
  Operand mask;  // data is null where the stage has none
  Operand output;
};

struct StageRow {
  const void* input;
  const void* mask;
  void* output;
};

constexpr int kMergeRows = 16;  // that are joined side by side

// output = the parts' outputs, each weighed by its share in the keys' exponentials; lse = their log-sum-exp.
// Rows are addressed through batch_strides, elements by column_stride; those of `output` lie side by side.
struct MergeProblem {
  Scalar scalar;  // of products and sums
  BatchShape rows;
  std::int64_t columns;
  std::int64_t parts;
  const Operand* outputs;  // one a part, as are lses
  const Operand* lses;
  Operand output;
  Operand lse;  // float32 or float64
};

struct MergeRows {
  int count;
  const void** outputs;  // [parts][kMergeRows], as are lses
  const void** lses;
  void* output[kMergeRows];
  void* lse[kMergeRows];
};

}  // namespace regard
