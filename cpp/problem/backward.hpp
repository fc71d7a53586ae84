// What a caller of the gradients asks for, as plain data, with the attention that they belong to.
#pragma once

#include "attention.hpp"

namespace regard {

// Data of an operand is null where it is not given, or not wanted.
struct BackwardProblem {
  // What the forward call was asked for; its output and lse are what that call gave. Rows do not lie in pages, and
  // precision is not int8.
  AttentionProblem forward;
  Operand grad_output;
  Operand grad_lse;  // one element a row
  Operand grad_query;
  Operand grad_key;
  Operand grad_value;
  // Where elements are broadcast, every gradient of one is added to it. Of the scalar type or float64; what it
  // holds before is added to.
  Operand grad_bias;
  // One element of the scalar type a row: what the row adds to the gradient of its head's slope.
  Operand slope_terms;
  // float64, as the forward's, whose every element has what all scores add to it: what it holds before is added to.
  Operand grad_distance_bias;
  // One element of the scalar type a row: rowsum(grad_output output) - grad_lse. A row whose output is 0, as that of a
  // row without keys is, has no first term, whatever its grad_output holds.
  Operand deltas;
};

// The rows of one kv head, or some of them.
struct BackwardTask {
  AttentionTask forward;
  const void* grad_output;  // of the group's first head, as are the others
  const void* grad_lse;
  void* grad_query;
  void* grad_key;
  void* grad_value;
  void* grad_bias;
  void* slope_terms;
  void* deltas;
  std::int64_t key_rows;  // of key and value, in this batch entry: kv_len or more
  // What a chunk of keys adds to the rows' gradients; null where it is all that they get. Only rows that see a key of
  // the chunk by position have something there.
  void* partial;
  double* distance_terms;  // [group][2 distances - 1]: what the chunk adds to the gradient of distance_bias, or null
  KeyInterval chunk;
};

}  // namespace regard
