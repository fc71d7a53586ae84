// The arguments of linear attention, as plain data. For each key head, with a state S of shape
// (head_dim, value_dim), and for each token t in order:
//
//   S = exp(decay_t) S                              decay_t: one number, or one per row of S
//   u = beta_t (value_t - S^T key_t)                without beta, u = value_t
//   S = S + key_t u^T
//   output_t = scale S^T query_t                    for each query head of the group
#pragma once

#include "operand.hpp"

namespace regard {

// Texts are computed in chunks of this many tokens, counted from a text's first token.
constexpr std::int64_t kChunkTokens = 64;

struct LinearProblem {
  Scalar scalar;
  double scale;
  BatchShape batch;
  std::int64_t heads;
  std::int64_t kv_heads;  // divides heads
  std::int64_t q_len;     // the maximum, if texts are packed
  std::int64_t head_dim;
  std::int64_t value_dim;
  const std::int64_t* starts;  // packed: text b has rows starts[b] to starts[b + 1]; or null

  Operand query;
  Operand key;
  Operand value;
  Operand decay;  // rows are tokens, columns those of keys; data is null if not given
  bool decays_by_column;
  Operand beta;   // rows are tokens; data is null if not given
  Operand state;  // rows are columns of keys; data is null for zeros
  Operand output;
  Operand new_state;  // in the type of the arithmetic; data is null if not wanted
};

// Some columns of the values of one key head, with all query heads of its group.
struct LinearTask {
  const void* query;
  const void* key;
  const void* value;
  const void* decay;
  const void* beta;
  const void* state;
  void* output;
  void* new_state;
  std::int64_t tokens;
  std::int64_t column_begin;
  std::int64_t column_end;
};

// The gradients of a loss with respect to all inputs; the output of `forward` and its new state are
// not used. Results are in the type of the arithmetic.
struct LinearBackwardProblem {
  LinearProblem forward;
  Operand grad_output;
  Operand grad_new_state;  // data is null for zeros
  Operand grad_query;
  Operand grad_key;
  Operand grad_value;
  Operand grad_decay;  // data is null if there is no decay, and likewise for the next two
  Operand grad_beta;
  Operand grad_state;
};

// All columns of one key head, with all query heads of its group.
struct LinearBackwardTask {
  LinearTask forward;
  const void* grad_output;
  const void* grad_new_state;
  void* grad_query;
  void* grad_key;
  void* grad_value;
  void* grad_decay;
  void* grad_beta;
  void* grad_state;
};

}  // namespace regard
