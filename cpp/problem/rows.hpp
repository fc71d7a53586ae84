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

struct StageRow {
  const void* input;
  const void* mask;
  void* output;
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

// Rows that lie without gaps, to be quantised to 8 bits (kernels/rows/quantise_rows.hpp).
struct QuantiseProblem {
  const float* from;
  std::int8_t* to;
  float* scales;  // one a row
  std::int64_t rows;
  std::int64_t columns;
  bool rotates;
};

// Rows that a cache keeps: `to` = `from`, each element rounded to the type of `to`, both of at most 32 bits
// or of one type. Rows are addressed through batch_strides; elements lie side by side.
struct ConvertProblem {
  BatchShape rows;
  std::int64_t columns;
  Operand from;
  Operand to;
};

}  // namespace regard
