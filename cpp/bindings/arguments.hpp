// Options as Python passes them, and how a call runs: without the GIL, answering Ctrl-C.
#pragma once

#include <pybind11/pybind11.h>

#include "../dispatch/threads/parallel_for.hpp"
#include "gil.hpp"

namespace regard {

namespace py = pybind11;

// `threads`: None means the default. Throws TypeError, or ValueError below 1.
int thread_count_of(py::handle threads);

bool flag_of(const char* name, py::handle value);

// A real number.
double number_of(const char* name, py::handle value);
double finite_number_of(const char* name, py::handle value);

std::int64_t whole_number_of(const char* name, py::handle value);

// Runs `compute(signal)` with the GIL released: every view has been taken, and the arrays are kept
// alive by the caller's references. A signal handler that raises (Ctrl-C) stops it.
template <class Compute>
void run_without_gil(Compute compute) {
  try {
    GilReleased released;
    const StopSignal signal{
        [](void* gil) { return static_cast<GilReleased*>(gil)->handlers_raise(); }, &released};
    compute(signal);
  } catch (const Stopped&) {
    throw py::error_already_set();
  }
}

}  // namespace regard
