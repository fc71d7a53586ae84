// scale, apply_mask and softmax.
#include "../dispatch/stages.hpp"

#include <algorithm>

#include "arguments.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "result.hpp"
#include "threading.hpp"

namespace regard {
namespace {

// An exponential costs about this many multiplications.
constexpr double kWorkOfElement = 10;

// A 0-d array as one row of one element.
void make_1d(ArrayView& view) {
  if (view.axes() != 0) return;
  view.shape = {1};
  view.strides = {0};
}

// A row's elements lie along `axis`; all other axes count rows.
Operand rows_along(const ArrayView& view, std::size_t axis, Integers& memory) {
  std::int64_t* const strides = memory.take(view.strides.size() - 1);
  Operand operand;
  operand.data = view.data;
  operand.element = view.element;
  operand.column_stride = view.strides[axis];
  operand.batch_strides = strides;
  for (std::size_t i = 0, row_axis = 0; i < view.shape.size(); ++i)
    if (i != axis) strides[row_axis++] = view.strides[i];
  return operand;
}

// Gives a mask the axes of `scores`, which it broadcasts to.
void broadcast_mask(ArrayView& mask, const ArrayView& scores) {
  for (std::size_t i = 0; i < mask.shape.size(); ++i)
    if (mask.shape[i] == 1) mask.strides[i] = 0;
  const std::size_t missing = scores.shape.size() - mask.shape.size();
  mask.shape.insert(mask.shape.begin(), missing, 1);
  mask.strides.insert(mask.strides.begin(), missing, 0);
}

// What a stage computes with; the mask's data is null where it has none.
struct StageArguments {
  Stage stage;
  double factor = 1;
  std::size_t axis = 0;  // of rows
  ArrayView mask{};
};

py::object run(StageArguments arguments, ArrayView input, py::handle out, int threads) {
  const Shape shape = input.shape;
  ArrayView& mask = arguments.mask;
  StageProblem problem{};
  problem.stage = arguments.stage;
  problem.scalar = scalar_of(input.element);
  problem.factor = arguments.factor;
  const Result result(out, result_type_of(problem.scalar), shape);
  result.forbid_overlap(input, true);
  if (mask.data) result.forbid_overlap(mask, false);

  ArrayView output = result.view;
  make_1d(input);
  make_1d(output);
  Integers memory;
  Shape rows = input.shape;
  problem.columns = rows[arguments.axis];
  rows.erase(rows.begin() + arguments.axis);
  problem.rows = batch_of(rows, memory);
  problem.input = rows_along(input, arguments.axis, memory);
  problem.output = rows_along(output, arguments.axis, memory);
  if (mask.data) {
    if (!broadcasts_to(mask.shape, input.shape))
      throw py::value_error("mask must broadcast to the shape of scores " + to_text(shape) +
                            ", got shape " + to_text(mask.shape));
    broadcast_mask(mask, input);
    problem.mask = rows_along(mask, arguments.axis, memory);
  }
  const double work = kWorkOfElement * static_cast<double>(problem.rows.count) *
                      static_cast<double>(problem.columns);
  run_work(work, [&](const StopSignal& signal) { run_stage(problem, threads, signal); });
  return result.deliver();
}

std::size_t last_axis(const ArrayView& view) {
  return static_cast<std::size_t>(std::max(view.axes(), 1) - 1);
}

}  // namespace

py::object scale(py::handle scores, py::handle factor, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  const double number = number_of("factor", factor);
  ArrayView view;
  if (!take_view(view, "scores", scores, Accepts::floats)) return not_implemented();
  return run({Stage::scale, number, last_axis(view)}, view, out, thread_count);
}

py::object apply_mask(py::handle scores, py::handle mask, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  ArrayView view, mask_view;
  if (!take_view(view, "scores", scores, Accepts::floats) ||
      !take_view(mask_view, "mask", mask, Accepts::mask))
    return not_implemented();
  return run({Stage::apply_mask, 1, last_axis(view), mask_view}, view, out, thread_count);
}

py::object softmax(py::handle x, py::handle axis, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  const std::int64_t number = integer_of("axis", axis);
  ArrayView view;
  if (!take_view(view, "x", x, Accepts::floats)) return not_implemented();
  const std::int64_t axes = std::max(view.axes(), 1);
  if (number < -axes || number >= axes)
    throw py::value_error("axis must be from " + std::to_string(-axes) + " to " +
                          std::to_string(axes - 1) + " for x of " + std::to_string(axes) +
                          " dimensions, got " + std::to_string(number));
  return run({Stage::softmax, 1, static_cast<std::size_t>(number < 0 ? number + axes : number)}, view,
             out, thread_count);
}

}  // namespace regard
