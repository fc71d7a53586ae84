// What is done to arrays row by row: the element-wise stages, merging, and storing rows in a cache.
#pragma once

#include "operand.hpp"

namespace regard {

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

// Rows that follow one another along the last axis of the batch. Softmax takes whole rows, the others the columns
// from column_begin to column_end.
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

constexpr int kMergeRows = 16;  // that are merged side by side

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

// Rows that lie without gaps, to be quantized (kernels/rows/quantize_rows.hpp).
struct QuantizeProblem {
  const float* from;
  Element element;  // int8, float8 or q4_1
  void* to;
  // One per row of int8; of q4_1 a scale and a minimum for each group; null for float8.
  void* scales;
  std::int64_t rows;
  std::int64_t columns;
  bool rotates;
};

// An array of rows, (batch entry or page, head, row, column), whose columns lie side by side.
struct RowArray {
  void* data;
  Element element;
  std::int64_t outer_stride;  // from one batch entry, or page, to the next
  std::int64_t head_stride;
  std::int64_t row_stride;
};

// New rows for the pages of a cache. Row r of a batch entry becomes row starts[entry] + r of the pages
// that its line of the table names, for every head. Each element is rounded to the type of `to`: both
// types have at most 32 bits, or they are the same.
struct StoreProblem {
  std::int64_t entries;
  std::int64_t heads;
  std::int64_t columns;
  std::int64_t most_rows;      // of any batch entry
  const std::int64_t* starts;  // one a batch entry
  const std::int64_t* counts;  // how many rows are new, one a batch entry
  // The first of an entry's new rows, where those of all entries are packed; null where each entry has its own.
  const std::int64_t* packed;
  const std::int32_t* pages;
  std::int64_t pages_stride;  // from one batch entry's line to the next
  std::int64_t page_rows;
  RowArray from;
  RowArray to;
};

}  // namespace regard
