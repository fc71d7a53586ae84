// Converts the keywords of the attention calls from Python objects to plain data.
//
// This is the only place below the public signatures that knows them by name. They arrive as one
// dictionary. `Options` holds their values, independent of any array's shape, and `set_options`
// passes them to a problem. Parsing may run Python code that changes the arrays, so options are
// parsed before any view is taken.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "../problem/attention.hpp"
#include "arrays.hpp"
#include "../problem/score_function.hpp"

namespace regard {

// Python's regard.ScoreFunction as plain data.
struct ScoreFunctionView {
  py::object object;  // kept alive, with the data that its addresses point to
  Scalar scalar{};
  ScoreFunction function{};
};

// An integer for each batch entry, or one for all.
struct EntryNumbers {
  std::int64_t single = 0;
  std::optional<ArrayView> each;  // a copy
};

struct Options {
  bool is_causal = false;
  std::optional<EntryNumbers> query_offset = EntryNumbers{};  // none for "end"
  std::int64_t window_left = kUnbounded;
  std::int64_t window_right = kUnbounded;
  std::optional<EntryNumbers> key_lengths;
  std::optional<EntryNumbers> left_padding;
  std::optional<double> scale;  // 1 / sqrt(head_dim) if not given
  double softcap = 0;           // 0 is no cap
  std::optional<ArrayView> scales;    // for each head, instead of `scale`; a copy
  std::optional<ArrayView> softcaps;  // likewise
  ArrayView distance_bias;                      // without an array if not given
  std::optional<ScoreFunctionView> score_function;
  std::optional<ArrayView> alibi_slopes;  // a copy, as are the sinks
  std::optional<ArrayView> sinks;
  double dropout_p = 0;
  std::optional<std::uint64_t> dropout_seed;
  DropoutOrigin dropout_origin = {0, 0, 0};
  Precision precision = Precision::full;
  bool return_weights = false;
  bool return_lse = false;
  bool wide_lse = false;  // in float64, for what is computed from it
  py::object out = py::none();
  std::optional<int> threads;  // the default if not given
};

// To be called while the module is imported. A static variable of a function would be initialized by a first
// call, while other threads wait for it and, without a GIL, cannot be stopped, for which Python may wait.
void intern_keywords();

// Fills in the values of the dictionary. Returns false if a keyword is not an option; throws
// TypeError or ValueError for an invalid value.
bool parse_options(py::handle keywords, Options& options);

// (..., heads, columns) of distance_bias or its gradient.
Operand distance_operand_of(const ArrayView& table, const BatchShape& batch, Integers& memory);

// Fills in the problem's options; its sizes, batch and scalar must be set. `batch` is the shape of
// the batch axes, and `entries` is their name in messages. Options and memory must outlive the
// problem. Throws ValueError.
void set_options(AttentionProblem& problem, const Options& options, const Shape& batch,
                 const char* entries, Integers& memory);

}  // namespace regard
