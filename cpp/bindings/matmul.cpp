// matmul, as numpy.matmul does it.
#include "../dispatch/matmul.hpp"

#include "arguments.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "result.hpp"
#include "threading.hpp"

namespace regard {
namespace {

// Makes a row (before) or a column (after) of a 1-D operand.
void promote(ArrayView& view, bool as_row) {
  if (view.axes() != 1) return;
  view.shape.insert(as_row ? view.shape.begin() : view.shape.end(), 1);
  view.strides.insert(as_row ? view.strides.begin() : view.strides.end(), 0);
}

Operand matrix_of(const ArrayView& view, const BatchShape& batch, Integers& memory) {
  Operand operand;
  operand.data = view.data;
  operand.element = view.element;
  operand.row_stride = view.stride(2);
  operand.column_stride = view.stride(1);
  operand.batch_strides = batch_strides_of(view, 2, batch, memory);
  return operand;
}

}  // namespace

py::object matmul(py::handle a_object, py::handle b_object, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  ArrayView a, b;
  if (!take_view(a, "a", a_object, Accepts::floats) || !take_view(b, "b", b_object, Accepts::floats) ||
      a.element != b.element)
    return not_implemented();
  for (const ArrayView* view : {&a, &b})
    if (view->axes() == 0)
      throw py::value_error(std::string(view->name) + " must have at least 1 dimension, got a scalar");
  const Shape given_a = a.shape, given_b = b.shape;
  const bool drops_row = a.axes() == 1, drops_column = b.axes() == 1;
  promote(a, true);
  promote(b, false);
  if (a.size(1) != b.size(2))
    throw py::value_error("the last axis of a and the last but one of b must agree, got " +
                          std::to_string(a.size(1)) + " and " + std::to_string(b.size(2)) + " (shapes " +
                          to_text(given_a) + " and " + to_text(given_b) + ")");

  Integers memory;
  MatmulProblem problem{};
  problem.scalar = scalar_of(a.element);
  problem.rows = a.size(2);
  problem.columns = b.size(1);
  problem.depth = a.size(1);
  Shape shape = broadcast_outer({&a, &b}, 2, "leading axes");
  problem.batch = batch_of(shape, memory);
  problem.a = matrix_of(a, problem.batch, memory);
  problem.b = matrix_of(b, problem.batch, memory);

  const std::size_t row_axis = shape.size();
  if (!drops_row) shape.push_back(problem.rows);
  if (!drops_column) shape.push_back(problem.columns);
  const Result result(out, result_type_of(problem.scalar), shape);
  for (const ArrayView* input : {&a, &b}) result.forbid_overlap(*input, false);
  ArrayView c = result.view;
  if (drops_row) {
    c.shape.insert(c.shape.begin() + row_axis, 1);
    c.strides.insert(c.strides.begin() + row_axis, 0);
  }
  if (drops_column) {
    c.shape.push_back(1);
    c.strides.push_back(0);
  }
  problem.c = matrix_of(c, problem.batch, memory);
  const double multiplications = static_cast<double>(problem.batch.count) * static_cast<double>(problem.rows) *
                                 static_cast<double>(problem.columns) * static_cast<double>(problem.depth);
  run_work(multiplications, [&](const StopSignal& signal) { matmul(problem, thread_count, signal); });
  return result.deliver();
}

}  // namespace regard
