// Selects the threading layer by name, from Python or the environment.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace regard {

namespace py = pybind11;

// The number of threads that a call may use if it requests this many, or the default for None: the
// argument `threads` of every function. The first such call reads the environment, and loads OpenMP
// if that is the layer.
int thread_count_of(py::handle threads);

void set_num_threads(py::handle threads);
std::string num_threads_reason();

void set_threading_layer(py::handle name);
py::dict threading_layer_info();

// For tests: also works when another layer is in use.
void exchange_threading_layer(const std::string& name);

}  // namespace regard
