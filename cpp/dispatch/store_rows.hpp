// Stores new rows in the pages of a cache, on the active target.
#pragma once

#include "../problem/rows.hpp"

namespace regard {

// Writes all rows; signals do not stop it. Returns whether a finite number became infinite.
bool store_rows(const StoreProblem& problem, int threads);

}  // namespace regard
