// matmul, with the semantics of numpy.matmul, and with weights of fewer bits.
#include "../dispatch/compute.hpp"

#include "arguments.hpp"
#include "bindings.hpp"
#include "fixed_vector.hpp"
#include "gil.hpp"
#include "result.hpp"
#include "threading.hpp"

namespace regard {
namespace {

// Turns a 1-D operand into a row (before) or a column (after).
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

py::object multiply(ArrayView& a, ArrayView& b, const ArrayView* scales, py::handle out, int threads) {
  FixedVector<const ArrayView*, 3> inputs;
  for (const ArrayView* input : {static_cast<const ArrayView*>(&a), static_cast<const ArrayView*>(&b), scales})
    if (input) inputs.push_back(input);
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
  if (scales) problem.scales = matrix_of(*scales, problem.batch, memory);

  const std::size_t row_axis = shape.size();
  if (!drops_row) shape.push_back(problem.rows);
  if (!drops_column) shape.push_back(problem.columns);
  const Result result(out, result_type_of(problem.scalar), shape);
  for (const ArrayView* input : inputs) result.forbid_overlap(*input, false);
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
  run_work(multiplications, [&](const StopSignal& signal) { matrix_product(problem, threads, signal); });
  return result.deliver();
}

}  // namespace

py::object matmul(py::handle a_object, py::handle b_object, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  ArrayView a, b;
  if (!take_view(a, "a", a_object, Accepts::floats) || !take_view(b, "b", b_object, Accepts::storage))
    return not_implemented();
  const bool is_narrow = b.element == Element::float16 || b.element == Element::bfloat16;
  if (a.element != b.element && !is_narrow) return not_implemented();
  return multiply(a, b, nullptr, out, thread_count);
}

py::object matmul_int8(py::handle a_object, py::handle numbers, py::handle scales_object, py::handle out,
                       py::handle threads) {
  const int thread_count = thread_count_of(threads);
  ArrayView a;
  if (!take_view(a, "a", a_object, Accepts::floats)) return not_implemented();
  ArrayView b = view_of("b", numbers, Accepts::cache);
  const ArrayView scales = view_of("scales", scales_object, Accepts::floats);
  const bool fit = b.element == Element::int8 && scales.element == Element::float32 && b.axes() == 2 &&
                   scales.axes() == 2 && scales.size(1) == b.size(1) &&
                   scales.size(2) == (b.size(2) + kScaleGroup - 1) / kScaleGroup;
  if (!fit) throw py::value_error("scales must be float32, one for each column and 64 rows of int8");
  return multiply(a, b, &scales, out, thread_count);
}

}  // namespace regard
