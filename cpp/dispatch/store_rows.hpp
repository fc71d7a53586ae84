// Rows of a cache, on the active target.
#pragma once

#include "../problem.hpp"

namespace regard {

// Writes all rows, whatever happens meanwhile. Returns whether a finite number became infinite.
bool store_rows(const StoreProblem& problem, int threads);

}  // namespace regard
