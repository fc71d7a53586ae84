// Functions of scores: Python's regard.ScoreFunction as plain data.
#pragma once

#include <pybind11/pybind11.h>

#include "../problem/operand.hpp"
#include "../problem/score_function.hpp"

namespace regard {

namespace py = pybind11;

struct ScoreFunctionView {
  py::object object;  // kept alive, with the data that its addresses point to
  Scalar scalar{};
  ScoreFunction function{};
};

// Throws TypeError for another object.
ScoreFunctionView score_function_of(py::handle object);

}  // namespace regard
