// The dispatch's interface to the matmul family.
#pragma once

#include "../../problem/matmul.hpp"

namespace regard {

struct MatmulKernels {
  bool (*takes_few_rows)(const MatmulProblem&);  // then b is read in place; nothing is shared
  std::int64_t (*workspace_bytes)(const MatmulProblem&);
  void (*run)(const MatmulProblem&, const MatmulTask&, void* workspace);
  // Waves: the parts of a and b that several tasks read are packed once.
  std::int64_t (*wave_rows_bytes)(const MatmulWave&);
  std::int64_t (*wave_panels_bytes)(const MatmulWave&);
  void (*pack_rows)(const MatmulProblem&, const MatmulTask&, const MatmulWave&);
  void (*pack_panels)(const MatmulProblem&, const MatmulTask&, const MatmulWave&);
  void (*run_wave)(const MatmulProblem&, const MatmulTask&, const MatmulWave&, void* workspace);
  std::int64_t tile_rows;
  std::int64_t task_rows;  // maximum of a task, as is task_columns
  std::int64_t task_columns;
  std::int64_t panel_columns;  // columns are packed in panels of this many
  std::int64_t depth;          // intervals of depth begin at multiples of this
};

}  // namespace regard
