// The arguments of a call that selects the keys of each query by an index, as plain data:
//
//   index[query][key] = sum over heads of head_weight[head][query] * max(0, query[head] . key)
#pragma once

#include "attention.hpp"

namespace regard {

struct SelectionProblem {
  AttentionProblem forward;  // values, results, and the options of scores and weights are not used
  Operand head_weights;      // one number per row
  // The keys with the largest index, as 64-bit integers in ascending order, and then -1. Heads are
  // kv heads, rows are queries, and there are `count` columns.
  Operand selected;
  std::int64_t count;
};

// Some queries, with all of their heads, of one kv head.
struct SelectionTask {
  AttentionTask forward;
  const void* head_weights;
};

}  // namespace regard
