#include "../dispatch/compute.hpp"
#include "arguments.hpp"
#include "attention_calls.hpp"
#include "gil.hpp"

namespace regard {

py::object selected_keys_of(AttentionCall& call, py::handle weights_object, py::handle count) {
  if (call.problem.heads == 0 && call.problem.kv_heads != 0)
    throw py::value_error("query must have at least one head, got shape " + to_text(call.query.shape));
  ArrayView weights;
  if (!call.take_input(weights, "weights", weights_object, Accepts::floats)) return not_implemented();
  check_shape(weights, call.rows_shape, "one number for each head and query");
  const AttentionProblem& forward = call.problem;
  const bool differs = forward.mask.head_stride != 0 ||
                       (forward.sparse_mask && forward.sparse_mask->starts.head_stride != 0);
  if (differs && forward.heads != forward.kv_heads)
    throw py::value_error("mask must be the same for all heads, since a query's keys are selected for all of them, "
                          "got a mask with a row for each of " + std::to_string(forward.heads) + " heads");

  SelectionProblem problem{};
  problem.count = integer_of("k", count);
  problem.head_weights = call.numbers_of_rows(weights);
  Shape shape = call.rows_shape;
  if (shape.size() > call.batch_shape.size() + 1) shape[call.batch_shape.size()] = forward.kv_heads;
  shape.push_back(as_axis(problem.count));
  const py::array selected(py::dtype::of<std::int64_t>(), shape);
  problem.selected = call.operand_of(view_as("selected", selected, Element::float64));
  problem.forward = call.problem;
  run_without_gil([&](const StopSignal& signal) { select_keys(problem, call.threads(), signal); });
  return selected;
}

}  // namespace regard
