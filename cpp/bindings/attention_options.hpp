// The options of an attention call, from Python objects to a problem.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

#include "../problem/attention.hpp"
#include "arrays.hpp"

namespace regard {

// As Python passes them, in the order of the module's functions.
struct AttentionOptions {
  py::handle is_causal;
  py::handle query_offset;
  py::handle window;
  py::handle key_lengths;
  py::handle scale;
  py::handle softcap;
  py::handle alibi_slopes;
  py::handle sinks;
  py::handle precision;
};

// Memory of our own that a problem's pointers reach: a neighbouring thread cannot change it under us.
struct OptionMemory {
  std::int64_t offset = 0;
  std::int64_t length = 0;
  py::array offsets;
  py::array lengths;
  std::vector<double> slopes;
  std::vector<double> sinks;
};

// Fills in the problem's options; its sizes and scalar are set. `batch` is the shape of the batch
// axes, and `entries` what the messages call one number for each of them. Throws TypeError or
// ValueError.
void set_options(AttentionProblem& problem, const AttentionOptions& options, const Shape& batch,
                 const char* entries, OptionMemory& memory);

}  // namespace regard
