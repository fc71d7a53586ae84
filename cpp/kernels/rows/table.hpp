// The rows family as the dispatch calls it: what is done to arrays row by row.
#pragma once

#include "../../problem/rows.hpp"

namespace regard {

struct RowKernels {
  void (*stage)(const StageProblem&, const StageRows&);

  // `shares` has room for [parts][kMergeRows].
  void (*merge)(const MergeProblem&, const MergeRows&, double* shares);

  // The rows from `begin` to `end`, of float32 whatever the scalar type; false if there is a number
  // that the type does not hold. `row` has room for one.
  bool (*quantize)(const QuantizeProblem&, std::int64_t begin, std::int64_t end, float* row);

  // Writes `columns` elements that lie side by side; true if a finite number became infinite.
  bool (*convert)(Element from_element, Element to_element, const void* from, void* to,
                  std::int64_t columns);
};

}  // namespace regard
