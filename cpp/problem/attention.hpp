// What a caller of attention asks for, as plain data: arrays, sizes and options. The bindings fill it in,
// the dispatch splits it into tasks, and the kernels read it.
#pragma once

#include "score_function.hpp"
#include "sparse_mask.hpp"

namespace regard {

// Which products may be of rounded numbers where that is faster. int8: those of queries and keys. bfloat16: these, and
// those of weights and values.
enum class Precision { full, int8, bfloat16 };

constexpr std::int64_t kUnbounded = -1;  // a window's side without an end

// Where the first batch entry, query head and key of a problem are in the larger one of which it is a part, for
// dropout. All positions move by `position`.
struct DropoutOrigin {
  std::int64_t entry;
  std::int64_t head;
  std::int64_t position;
};

struct AttentionProblem {
  Scalar scalar;
  Precision precision;
  std::int64_t l2_bytes;  // of the L2 cache, by which kernels choose what they keep there

  // Which keys a query sees: those from window_left before its position to window_right after it.
  // Causal is a window_right of 0.
  std::int64_t window_left;
  std::int64_t window_right;
  // The first keys of every batch entry, this many, are visible whatever window_left says.
  std::int64_t keep_first;

  // How a score is formed.
  double scale;         // multiplies query . key
  double softcap;       // 0 means none
  PerHead scales;       // instead of `scale`; data is null where all heads share it
  PerHead softcaps;     // likewise
  const ScoreFunction* score_function;  // of capped scores, or null
  const double* sinks;  // one per head, or null

  // Which weights are dropped (kernels/strips/dropout.hpp): those whose random word is not above the limit.
  double dropout_factor;  // of those that stay; 0 where there is no dropout
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

  // Ragged: sequence b of the batch has the rows query_starts[b] to query_starts[b + 1] of query,
  // mask, output, weights and lse, and the rows key_starts[b] to key_starts[b + 1] of key and value;
  // q_len and kv_len are then the longest. Null otherwise.
  const std::int64_t* query_starts;
  const std::int64_t* key_starts;

  Operand query;
  Operand key;
  Operand value;
  // What int8 stands for: an element is stored * scale of its row, and keys are such rows rotated and divided
  // by the size of a group (kernels/hadamard.hpp) unless they are upright. Data is null where keys and values are
  // not int8.
  Operand key_scales;
  Operand value_scales;
  bool are_keys_upright;
  // Where page_rows is not 0, keys, values and scales lie in pages of this many rows: row r of a batch
  // entry is row r % page_rows of page pages[entry][column], and the column is r / page_rows unless
  // pages have been evicted. These follow the pages that hold sink tokens and have no column: every
  // later page's column is smaller by their number. No query sees a key of theirs.
  const std::int32_t* pages;
  std::int64_t pages_stride;  // from one batch entry's pages to the next
  PerEntry evicted_pages;
  std::int64_t page_rows;
  // Rows are queries, columns are keys; the heads are the query's. Data is null where there is none.
  Operand mask;           // bool: true where a key is visible
  const SparseMask* sparse_mask;  // instead of `mask`, or null
  Operand bias;           // float32 or float64: added to the score; -inf hides
  PerHead alibi_slopes;
  // Added to the score of a key that is d after its query, from column distances - 1 + d of the head: float32 or
  // float64. Farther keys have the last column of their side. It has no rows. Data is null where there is none.
  Operand distance_bias;
  std::int64_t distances;
  Operand output;
  Operand weights;  // data is null where the caller does not want them
  Operand lse;      // one element a row; data is null where the caller does not want it
  PerEntry query_offset;  // data is null where the last query is at an entry's last key
  PerEntry key_lengths;   // data is null where all have kv_len keys
  PerEntry left_padding;  // keys before it do not exist; data is null where all begin at 0
};

// A problem is made anew for every call: it stays small enough that clearing it takes no time.
static_assert(sizeof(AttentionProblem) < 1024, "an attention problem is lean");

constexpr std::int64_t kMostInt8Dim = 1024;  // head_dim, where precision is int8

// The keys of one kv head in int8, less their mean and rotated (kernels/int8/keys.hpp).
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
  const void* query;  // of the group's first head, as are mask to lse
  const void* key;
  const void* value;
  const float* key_scales;
  const float* value_scales;
  const std::int32_t* pages;
  const Int8Keys* int8_keys;  // null where precision is full
  const void* mask;
  const std::int64_t* mask_starts;  // of the sparse mask: of the group's first head and row 0
  std::int64_t mask_query;          // query 0 of the entry among those that its rows count
  const void* bias;
  const double* scales;  // of the group's heads, as are the next two; null where the problem has none
  const double* softcaps;
  const double* alibi_slopes;
  const void* distance_bias;
  void* output;
  void* weights;
  void* lse;
  std::int64_t entry;  // of the batch
  std::int64_t first_head;
  std::int64_t query_offset;
  std::int64_t key_begin;  // the keys that this batch entry has: from here ...
  std::int64_t kv_len;     // ... up to here
  std::int64_t evicted_pages;
  std::int64_t row_begin;
  std::int64_t row_end;
};

struct KeyInterval {
  std::int64_t begin;
  std::int64_t end;
};

// Keys that are seen by position: sink tokens, and those of a window after them. Without sink tokens, or
// where the two meet, all are in `window` and `keep_first` is empty.
struct SeenKeys {
  KeyInterval keep_first;
  KeyInterval window;
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

}  // namespace regard
