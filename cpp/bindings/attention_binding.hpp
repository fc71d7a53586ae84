// What the dense and the ragged call share: from arrays to a problem, and from a problem to results.
#pragma once

#include "../dispatch/threads/parallel_for.hpp"
#include "arguments.hpp"
#include "arrays.hpp"
#include "attention_options.hpp"

namespace regard {

// A problem whose arrays, options and results stay alive with it; its pointers reach into `memory`.
struct AttentionCall {
  // `stored` is what keys and values may be.
  AttentionCall(py::handle query, py::handle key, py::handle value,
                Accepts stored = Accepts::storage);
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  // Takes the mask, which must broadcast to weights_shape.
  void set_mask(py::handle mask_object);

  // Locates query, key and value.
  void set_inputs();

  // Does that too, and allocates the results, or takes `out`.
  void set_results(py::handle out, bool wants_weights, bool wants_lse);

  // Runs and returns output, or a tuple of it with the extra results.
  py::object run(int threads);

  // What it would do, as Python's _Plan. Results are not needed.
  py::dict plan(int threads) const;

  ArrayView query, key, value, mask, weights, lse;
  AttentionProblem problem;
  OptionMemory memory;
  ResultType type;
  // Of the whole results, and where in them heads and rows stand, counted from the end of weights.
  Shape output_shape, weights_shape, rows_shape;
  int heads_axis = 3, rows_axis = 2;

 private:
  Operand operand_of(const ArrayView& view) const;

  std::vector<Result> output_;  // none or one
};

}  // namespace regard
