// The arguments of a gradient call as plain data, including the attention call that the gradients
// belong to.
#pragma once

#include "attention.hpp"

namespace regard {

// Data of an operand is null if it is not given or not wanted.
struct BackwardProblem {
  // The arguments of the forward call, with the output and lse that it returned. Rows are not
  // stored in pages, and precision is not int8.
  AttentionProblem forward;
  Operand grad_output;
  Operand grad_lse;  // one element per row
  Operand grad_query;
  Operand grad_key;
  Operand grad_value;
  // If elements are broadcast, all gradients of an element are added to it. float64 or the scalar
  // type. Gradients are added to the existing contents.
  Operand grad_bias;
  // One element of the scalar type per row: the row's contribution to the gradient of its head's
  // slope.
  Operand slope_terms;
  // float64, in the layout of the forward's distance_bias. Each element is the sum of the gradients
  // of all scores that it is added to. Gradients are added to the existing contents.
  Operand grad_distance_bias;
  // One element of the scalar type per row: rowsum(grad_output output) - grad_lse. For a row whose
  // output is 0, such as a fully masked row, the first term is 0, whatever its grad_output
  // contains.
  Operand deltas;
};

// The rows of one kv head, or some of them.
struct BackwardTask {
  AttentionTask forward;
  const void* grad_output;  // of the group's first head, as are the other pointers
  const void* grad_lse;
  void* grad_query;
  void* grad_key;
  void* grad_value;
  void* grad_bias;
  void* slope_terms;
  void* deltas;
  std::int64_t key_rows;  // rows of key and value in this batch entry: kv_len or more
  // A chunk's contribution to the rows' gradients; null if it is the only contribution. Only rows
  // that see a key of the chunk by position have contents there.
  void* partial;
  double* distance_terms;  // [group][2 distances - 1]: gradient of distance_bias, or null
  KeyInterval chunk;
};

}  // namespace regard
