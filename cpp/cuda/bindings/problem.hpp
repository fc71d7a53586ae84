// A problem as Python fills it in: an attribute for each field of AttentionProblem.
#pragma once

#include <pybind11/pybind11.h>

namespace regard::cuda {

void add_problem(pybind11::module_& module);

}  // namespace regard::cuda
