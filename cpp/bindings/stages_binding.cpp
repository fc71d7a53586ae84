// matmul, scale, apply_mask and softmax.
#include <algorithm>

#include "../dispatch/matmul.hpp"
#include "../dispatch/stages.hpp"
#include "arguments.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

// Adds an axis of length 1 in front of (row) or behind (column) a 1-D operand.
void promote(ArrayView& view, bool as_row) {
  if (view.axes() != 1) return;
  view.shape.insert(as_row ? view.shape.begin() : view.shape.end(), 1);
  view.strides.insert(as_row ? view.strides.begin() : view.strides.end(), 0);
}

Operand matrix_operand(const ArrayView& view, const BatchShape& batch) {
  Operand operand;
  operand.data = const_cast<void*>(view.array.data());
  operand.element = view.element;
  operand.head_stride = 0;
  operand.row_stride = view.stride(2);
  operand.column_stride = view.stride(1);
  set_batch_strides(operand, view, 2, batch);
  return operand;
}

// A row's elements lie along `axis`; all other axes count rows.
Operand rows_operand(const ArrayView& view, std::size_t axis) {
  Operand operand;
  operand.data = const_cast<void*>(view.array.data());
  operand.element = view.element;
  operand.head_stride = operand.row_stride = 0;
  operand.column_stride = view.strides[axis];
  int row_axis = 0;
  for (std::size_t i = 0; i < view.shape.size(); ++i)
    if (i != axis) operand.batch_strides[row_axis++] = view.strides[i];
  return operand;
}

// A 0-d array as one row of one element.
void make_1d(ArrayView& view) {
  if (view.axes() != 0) return;
  view.shape = {1};
  view.strides = {0};
}

py::object stage(Stage kind, const char* name, py::handle input_object, double factor,
                 py::handle mask_object, std::int64_t axis, py::handle out, py::handle threads) {
  ArrayView input = view_of(name, input_object, Accepts::floats);
  const int thread_count = thread_count_of(threads);
  StageProblem problem;
  problem.stage = kind;
  problem.scalar = scalar_of(input.element);
  problem.factor = factor;
  problem.mask.data = nullptr;

  const Shape shape = input.shape;
  ArrayView mask;
  if (kind == Stage::apply_mask) {
    mask = view_of("mask", mask_object, Accepts::mask);
  }
  Result result(out, result_type_of(problem.scalar), shape);
  result.forbid_overlap(input, true);
  if (kind == Stage::apply_mask) result.forbid_overlap(mask, false);

  ArrayView output = result.view;
  make_1d(input);
  make_1d(output);
  const std::size_t row_axis = static_cast<std::size_t>(axis < 0 ? axis + input.axes() : axis);
  Shape rows = input.shape;
  problem.columns = rows[row_axis];
  rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(row_axis));
  problem.rows = batch_of(rows);
  problem.input = rows_operand(input, row_axis);
  problem.output = rows_operand(output, row_axis);
  if (kind == Stage::apply_mask) {
    if (!broadcasts_to(mask.shape, input.shape))
      throw py::value_error("mask must broadcast to the shape of scores " + to_text(shape) +
                            ", got shape " + to_text(mask.shape));
    const std::size_t missing = input.shape.size() - mask.shape.size();
    for (std::size_t i = 0; i < mask.shape.size(); ++i)
      if (mask.shape[i] == 1) mask.strides[i] = 0;
    mask.shape.insert(mask.shape.begin(), missing, 1);
    mask.strides.insert(mask.strides.begin(), missing, 0);
    problem.mask = rows_operand(mask, row_axis);
  }
  run_without_gil([&](const StopSignal& signal) { run_stage(problem, thread_count, signal); });
  return result.deliver();
}

}  // namespace

py::object matmul(py::handle a_object, py::handle b_object, py::handle out, py::handle threads) {
  ArrayView a = view_of("a", a_object, Accepts::floats);
  ArrayView b = view_of("b", b_object, Accepts::floats);
  const int thread_count = thread_count_of(threads);
  for (const ArrayView* view : {&a, &b})
    if (view->axes() == 0)
      throw py::value_error(std::string(view->name) + " must have at least 1 dimension, got a scalar");
  if (a.element != b.element) throw py::type_error("a and b must share a type");
  const std::string shapes = to_text(a.shape) + " and " + to_text(b.shape);
  const bool drops_row = a.axes() == 1, drops_column = b.axes() == 1;
  promote(a, true);
  promote(b, false);
  if (a.size(1) != b.size(2))
    throw py::value_error("the last axis of a and the last but one of b must agree, got " +
                          std::to_string(a.size(1)) + " and " + std::to_string(b.size(2)) +
                          " (shapes " + shapes + ")");

  MatmulProblem problem;
  problem.scalar = scalar_of(a.element);
  problem.rows = a.size(2);
  problem.columns = b.size(1);
  problem.depth = a.size(1);
  Shape batch;
  const std::vector<const ArrayView*> inputs{&a, &b};
  for (const ArrayView* view : inputs)
    broadcast_into(batch, Shape(view->shape.begin(), view->shape.end() - 2), inputs,
                   "leading axes");
  problem.batch = batch_of(batch);
  problem.a = matrix_operand(a, problem.batch);
  problem.b = matrix_operand(b, problem.batch);

  Shape shape = batch;
  if (!drops_row) shape.push_back(problem.rows);
  if (!drops_column) shape.push_back(problem.columns);
  Result result(out, result_type_of(problem.scalar), shape);
  for (const ArrayView* input : inputs) result.forbid_overlap(*input, false);
  ArrayView c = result.view;
  if (drops_row) {
    const auto at = static_cast<std::ptrdiff_t>(batch.size());
    c.shape.insert(c.shape.begin() + at, 1);
    c.strides.insert(c.strides.begin() + at, 0);
  }
  if (drops_column) {
    c.shape.push_back(1);
    c.strides.push_back(0);
  }
  problem.c = matrix_operand(c, problem.batch);
  run_without_gil([&](const StopSignal& signal) { matmul(problem, thread_count, signal); });
  return result.deliver();
}

py::object scale(py::handle scores, py::handle factor, py::handle out, py::handle threads) {
  return stage(Stage::scale, "scores", scores, number_of("factor", factor), py::none(), -1, out,
               threads);
}

py::object apply_mask(py::handle scores, py::handle mask, py::handle out, py::handle threads) {
  return stage(Stage::apply_mask, "scores", scores, 1.0, mask, -1, out, threads);
}

py::object softmax(py::handle x, py::handle axis, py::handle out, py::handle threads) {
  const std::int64_t number = whole_number_of("axis", axis);
  const std::int64_t axes = std::max<py::ssize_t>(view_of("x", x, Accepts::floats).axes(), 1);
  if (number < -axes || number >= axes)
    throw py::value_error("axis must be from " + std::to_string(-axes) + " to " +
                          std::to_string(axes - 1) + " for x of " + std::to_string(axes) +
                          " dimensions, got " + std::to_string(number));
  return stage(Stage::softmax, "x", x, 1.0, py::none(), number, out, threads);
}

}  // namespace regard
