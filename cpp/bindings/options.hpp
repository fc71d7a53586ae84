// The keywords of the attention calls, from Python objects to plain data.
//
// This is the one place below the public signatures that knows them by name. They arrive as one dictionary;
// `Options` holds what it said, independent of any array's shape, and `set_options` hands it to a problem. What
// a caller passes may run Python code that changes the arrays, so options are parsed before any view is taken.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "../problem/attention.hpp"
#include "arrays.hpp"
#include "score_function.hpp"

namespace regard {

// An integer for each batch entry, or one for all.
struct EntryNumbers {
  std::int64_t single = 0;
  std::optional<py::array> each;  // of int64, in memory of our own
};

struct Options {
  bool is_causal = false;
  std::optional<EntryNumbers> query_offset = EntryNumbers{};  // none for "end"
  std::int64_t window_left = kUnbounded;
  std::int64_t window_right = kUnbounded;
  std::optional<EntryNumbers> key_lengths;
  std::optional<EntryNumbers> left_padding;
  std::optional<double> scale;  // 1 / sqrt(head_dim) where it is not given
  double softcap = 0;           // 0 is no cap
  std::optional<py::array_t<double>> scales;    // of each head, instead of `scale`
  std::optional<py::array_t<double>> softcaps;  // likewise
  ArrayView distance_bias;                      // without an array where it is not given
  std::optional<ScoreFunctionView> score_function;
  // In memory of our own: a neighboring thread cannot change them while the kernels read them.
  std::optional<py::array_t<double>> alibi_slopes;
  std::optional<py::array_t<double>> sinks;
  double dropout_p = 0;
  std::optional<std::uint64_t> dropout_seed;
  DropoutOrigin dropout_origin = {0, 0, 0};
  Precision precision = Precision::full;
  bool return_weights = false;
  bool return_lse = false;
  py::object out = py::none();
  std::optional<int> threads;  // the default where it is not given
};

// Fills in what the dictionary says. Returns false where it has a keyword that is not an option; throws
// TypeError or ValueError for what an option cannot be.
bool parse_options(py::handle keywords, Options& options);

// (..., heads, columns) of distance_bias or its gradient.
Operand distance_operand_of(const ArrayView& table, const BatchShape& batch, Integers& memory);

// Fills in the problem's options; its sizes, batch and scalar are set. `batch` is the shape of the batch axes,
// and `entries` what messages call them. Options and memory must outlive the problem. Throws ValueError.
void set_options(AttentionProblem& problem, const Options& options, const Shape& batch,
                 const char* entries, Integers& memory);

}  // namespace regard
