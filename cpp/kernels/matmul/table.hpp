// The matmul family as the dispatch calls it.
#pragma once

#include "../../problem/matmul.hpp"

namespace regard {

struct MatmulKernels {
  std::int64_t (*workspace_bytes)(const MatmulProblem&);
  void (*run)(const MatmulProblem&, const MatmulTask&, void* workspace);
  std::int64_t task_rows;     // the most of a task, as are task_columns
  std::int64_t task_columns;
  std::int64_t panel_columns;  // columns are packed in panels of this many
  std::int64_t depth;          // intervals of depth begin at multiples of this
};

}  // namespace regard
