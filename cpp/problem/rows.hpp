// Operations on arrays, row by row: the element-wise stages, merging, and storing rows in a cache.
#pragma once

#include "operand.hpp"

namespace regard {

enum class Stage { scale, apply_mask, softmax };

// A stage maps every row of the input to the same row of the output. Rows are addressed through
// batch_strides, elements through column_stride. An Operand's last batch axis, head and row are
// unused.
struct StageProblem {
  Stage stage;
  Scalar scalar;
  double factor;
  BatchShape rows;
  std::int64_t columns;
  Operand input;
  Operand mask;  // data is null if the stage has no mask
  Operand output;
};

// Consecutive rows along the last axis of the batch. Softmax processes whole rows, the other stages
// the columns from column_begin to column_end.
struct StageRows {
  const void* input;
  const void* mask;
  void* output;
  std::int64_t count;
  std::int64_t input_stride;  // from one row to the next
  std::int64_t mask_stride;
  std::int64_t output_stride;
  std::int64_t column_begin;
  std::int64_t column_end;
};

constexpr int kMergeRows = 16;  // rows that are merged together

// output = the sum of the parts' outputs, weighted by their shares of the keys' exponentials; lse =
// the log-sum-exp of the parts' lses. Rows are addressed through batch_strides, elements through
// column_stride. The elements of an output row are contiguous.
struct MergeProblem {
  Scalar scalar;  // type of products and sums
  BatchShape rows;
  std::int64_t columns;
  std::int64_t parts;
  const Operand* outputs;  // one per part, as are lses
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

// Contiguous rows to be quantized (kernels/rows/quantize_rows.hpp).
struct QuantizeProblem {
  const float* from;
  Element element;  // int8, float8 or q4_1
  void* to;
  // int8: one scale per row. q4_1: a scale and a minimum per group. float8: null.
  void* scales;
  std::int64_t rows;
  std::int64_t columns;
  bool rotates;
};

// An array of rows, (batch entry or page, head, row, column), with contiguous columns.
struct RowArray {
  void* data;
  Element element;
  std::int64_t outer_stride;  // from one batch entry, or page, to the next
  std::int64_t head_stride;
  std::int64_t row_stride;
};

// New rows for the pages of a cache. For every head, row r of a batch entry becomes row
// starts[entry] + r of the pages listed in the entry's row of the page table. Each element is
// rounded to the type of `to`. Both types have at most 32 bits, or they are equal.
struct StoreProblem {
  std::int64_t entries;
  std::int64_t heads;
  std::int64_t columns;
  std::int64_t most_rows;      // maximum over batch entries
  const std::int64_t* starts; // one per batch entry
  const std::int64_t* counts;  // number of new rows, one per batch entry
  // The index of an entry's first new row, if the new rows of all entries are packed; null if each
  // entry has separate rows.
  const std::int64_t* packed;
  const std::int32_t* pages;
  std::int64_t pages_stride;  // from one batch entry's page list to the next
  std::int64_t page_rows;
  RowArray from;
  RowArray to;
};

}  // namespace regard
