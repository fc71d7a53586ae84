// The dispatch's interface to the tangent family: the derivative of attention along a direction.
#pragma once

#include "../../problem/tangent.hpp"

namespace regard {

// To compute a task, call these functions with a workspace of `workspace_bytes` bytes, aligned to
// 64: first `begin`, then `advance` over consecutive intervals of the keys that `begin` returns,
// sink tokens first, then `finish`. Intervals begin at whole blocks.
struct TangentKernels {
  std::int64_t (*workspace_bytes)(const TangentProblem&, std::int64_t task_rows);
  SeenKeys (*begin)(const TangentProblem&, const TangentTask&, void* workspace);
  void (*advance)(const TangentProblem&, const TangentTask&, std::int64_t key_begin,
                  std::int64_t key_end, void* workspace);
  void (*finish)(const TangentProblem&, const TangentTask&, void* workspace);
};

}  // namespace regard
