// The starts of packed sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "arrays.hpp"

namespace regard {

// Element b is the start of sequence b, and the last element is the end of all sequences.
using Starts = std::vector<std::int64_t>;

// Throws TypeError or ValueError, with the argument's name, unless the numbers begin with 0 and do
// not decrease.
Starts starts_of(const char* name, py::handle object);

// Throws ValueError unless the last sequence ends with the array, (total, heads, dim).
void check_starts(const char* name, const Starts& starts, const ArrayView& packed);

// The length of the longest sequence.
std::int64_t longest(const Starts& starts);

}  // namespace regard
