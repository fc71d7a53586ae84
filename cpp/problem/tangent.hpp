// What a caller of derivatives along a direction asks for, as plain data, with the attention that they belong to.
#pragma once

#include "attention.hpp"

namespace regard {

// Data of a tangent is null where it is zero.
struct TangentProblem {
  AttentionProblem forward;  // output and lse are computed as well; data of lse is null where it is not wanted
  Operand tangent_query;
  Operand tangent_key;
  Operand tangent_value;
  Operand tangent_output;
  Operand tangent_lse;  // one element a row; data is null where it is not wanted
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
