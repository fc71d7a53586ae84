// The arguments of a directional derivative as plain data, including the attention call that it
// belongs to.
#pragma once

#include "attention.hpp"

namespace regard {

// Data of a tangent is null if the tangent is zero.
struct TangentProblem {
  AttentionProblem forward;  // output and lse are also computed; data of lse is null if not wanted
  Operand tangent_query;
  Operand tangent_key;
  Operand tangent_value;
  Operand tangent_output;
  Operand tangent_lse;  // one element per row; data is null if not wanted
};

struct TangentTask {
  AttentionTask forward;
  const void* tangent_query;  // of the group's first head, as are tangent_output and tangent_lse
  const void* tangent_key;
  const void* tangent_value;
  void* tangent_output;
  void* tangent_lse;
};

}  // namespace regard
