// The arguments of an attention call as plain data: arrays, sizes and options. The bindings fill it
// in, the dispatch splits it into tasks, and the kernels read it.
#pragma once

#include "score_function.hpp"
#include "sparse_mask.hpp"

namespace regard {

// Products that may be computed from rounded numbers if that is faster. int8: products of queries
// and keys. bfloat16: also products of weights and values.
enum class Precision { full, int8, bfloat16 };

constexpr std::int64_t kUnbounded = -1;  // an unbounded side of a window

// For dropout: the indices of the problem's first batch entry, query head and key in the larger
// problem of which it is a part. All positions move by `position`.
struct DropoutOrigin {
  std::int64_t entry;
  std::int64_t head;
  std::int64_t position;
};

struct AttentionProblem {
  Scalar scalar;
  Precision precision;
  std::int64_t l2_bytes;  // size of L2, which determines what kernels keep in it

  // A query sees the keys from window_left before its position to window_right after its position.
  // Causal attention has a window_right of 0.
  std::int64_t window_left;
  std::int64_t window_right;
  // The number of first keys of every batch entry that are visible regardless of window_left.
  std::int64_t keep_first;

  // The computation of scores.
  double scale;         // multiplies query . key
  double softcap;       // 0 means none
  PerHead scales;       // instead of `scale`; data is null if all heads share it
  PerHead softcaps;     // likewise
  const ScoreFunction* score_function;  // of capped scores, or null
  const double* sinks;  // one per head, or null
  std::int64_t sinks_stride;  // 0 if all heads share a sink

  // Dropout (kernels/strips/dropout.hpp): weights whose random word is not above the limit are
  // dropped.
  double dropout_factor;  // factor of the kept weights; 0 without dropout
  std::uint32_t dropout_limit;
  std::uint64_t dropout_seed;
  DropoutOrigin dropout_origin;

  BatchShape batch;
  std::int64_t heads;
  std::int64_t kv_heads;  // divides heads
  std::int64_t q_len;
  std::int64_t kv_len;
  std::int64_t head_dim;
  std::int64_t value_dim;

  // Ragged batches: sequence b has rows query_starts[b] to query_starts[b + 1] of query, mask,
  // output, weights and lse, and rows key_starts[b] to key_starts[b + 1] of key and value. q_len
  // and kv_len are then the maximum lengths. Null otherwise.
  const std::int64_t* query_starts;
  const std::int64_t* key_starts;

  Operand query;
  Operand key;
  Operand value;
  // The scales of int8: an element is the stored integer times the scale of its row, and keys are
  // such rows, rotated and divided by the size of a group (kernels/hadamard.hpp) unless they are
  // upright. Data is null if keys and values are not int8.
  Operand key_scales;
  Operand value_scales;
  bool are_keys_upright;
  // float8 of another engine, which may be NaN, and whose scales do not include a unit
  // (simd/half.hpp).
  bool has_foreign_float8;
  // Subtracted from rotated keys before the rotation, [kv_heads][head_dim]; null if nothing was.
  const float* key_means;
  // If page_rows is not 0, keys, values and scales are stored in pages of this many rows: row r of
  // a batch entry is row r % page_rows of page pages[entry][column]. The column is r / page_rows
  // unless pages have been evicted. Evicted pages follow the pages that contain sink tokens and
  // have no column, so the column of every later page is smaller by the number of evicted pages. No
  // query sees a key of an evicted page.
  const std::int32_t* pages;
  std::int64_t pages_stride;  // from one batch entry's pages to the next
  PerEntry evicted_pages;
  std::int64_t page_rows;
  // Rows are queries, columns are keys, and heads are query heads. Data is null if not given.
  Operand mask;           // bool: true for visible keys
  const SparseMask* sparse_mask;  // instead of `mask`, or null
  Operand bias;           // of any float type, added to the score; -inf hides
  PerHead alibi_slopes;
  // Added to the score of a key that is d after its query: column distances - 1 + d of the head,
  // float32 or float64. Keys beyond the table use the last column on their side. It has no rows.
  // Data is null if not given.
  Operand distance_bias;
  std::int64_t distances;
  Operand output;
  Operand weights;  // data is null if not wanted
  Operand lse;      // one element per row; data is null if not wanted
  PerEntry query_offset;  // data is null if the last query is at an entry's last key
  PerEntry key_lengths;   // data is null if all entries have kv_len keys
  PerEntry left_padding;  // keys before it do not exist; data is null if all begin at 0
};

// A new problem is created for every call. It must stay small enough that clearing it takes no
// time.
static_assert(sizeof(AttentionProblem) <= 1024, "an attention problem is lean");

constexpr std::int64_t kMostInt8Dim = 1024;  // maximum head_dim with int8 precision

// The int8 keys of one kv head, minus their mean and rotated (kernels/int8/keys.hpp).
struct Int8Keys {
  std::int8_t* rows;  // zeros follow each row, and the last row up to a whole tile
  std::int64_t row_bytes;
  float* scales;
  std::int32_t* corrections;  // -128 times a row's sum
  float* mean;                // [padded head_dim], zeros at the end
};

// The query rows of one kv head that one thread owns. Row r is query r / group of head r % group.
// The heads of a group are adjacent, so one pass over keys and values serves all of them, and the
// rows of a task see about the same keys in causal attention.
struct AttentionTask {
  const void* query;  // of the group's first head, as are `mask` to `lse`
  const void* key;
  const void* value;
  const float* key_scales;
  const float* value_scales;
  const float* key_means;  // of the kv head
  const std::int32_t* pages;
  const Int8Keys* int8_keys;  // null if precision is full
  const void* mask;
  const std::int64_t* mask_starts;  // of the sparse mask, for the group's first head and row 0
  std::int64_t mask_query;          // query 0 of the entry, as the mask's rows count queries
  const void* bias;
  const double* scales;  // of the group's heads, as are the next two; null if not given
  const double* softcaps;
  const double* alibi_slopes;
  const void* distance_bias;
  void* output;
  void* weights;
  void* lse;
  std::int64_t entry;  // of the batch
  std::int64_t first_head;
  std::int64_t query_offset;
  std::int64_t key_begin;  // the keys of this batch entry: from here ...
  std::int64_t kv_len;     // ... up to here
  std::int64_t evicted_pages;
  std::int64_t row_begin;
  std::int64_t row_end;
  const AttentionTask* next;  // what this thread probably computes next, to prefetch; or null
};

struct KeyInterval {
  std::int64_t begin;
  std::int64_t end;
};

// Keys that are visible by position: sink tokens, and the keys of a window after them. Without sink
// tokens, or if the two meet, all keys are in `window` and `keep_first` is empty.
struct SeenKeys {
  KeyInterval keep_first;
  KeyInterval window;
};

// The number of tiles (the rows of a strip or of a decode x a few keys) that a task would compute,
// by kind.
struct TileCounts {
  std::int64_t all;      // of the whole square
  std::int64_t visible;  // computed without a bias
  std::int64_t biased;   // computed with a bias or at an edge
  std::int64_t scores;   // number of computed scores
  std::int64_t chunks;   // chunks of keys, which threads may share
};

}  // namespace regard
