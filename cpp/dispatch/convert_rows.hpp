// Rows of a cache, on the active target.
#pragma once

#include "../problem/rows.hpp"

namespace regard {

// Writes all rows, whatever happens meanwhile. Returns whether a finite number became infinite.
bool convert_rows(const ConvertProblem& problem, int threads);

}  // namespace regard
