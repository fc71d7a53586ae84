// The dispatch's interface to the rows family: operations on arrays, row by row.
#pragma once

#include "../../problem/rows.hpp"

namespace regard {

struct RowKernels {
  void (*stage)(const StageProblem&, const StageRows&);

  // `shares` has room for [parts][kMergeRows].
  void (*merge)(const MergeProblem&, const MergeRows&, double* shares);

  // Quantizes the rows from `begin` to `end`, which are float32 whatever the scalar type is.
  // Returns false if the type cannot hold some number. `row` has room for one row.
  bool (*quantize)(const QuantizeProblem&, std::int64_t begin, std::int64_t end, float* row);

  // Writes `columns` contiguous elements. Returns true if a finite number became infinite.
  bool (*convert)(Element from_element, Element to_element, const void* from, void* to,
                  std::int64_t columns);
};

}  // namespace regard
