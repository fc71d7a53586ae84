// scale, apply_mask and softmax.
#include "../dispatch/compute.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "result.hpp"
#include "threading.hpp"

namespace regard {
namespace {

// An exponential costs about this many multiplications.
constexpr double kWorkOfElement = 10;

// An axis of the scores: its size, and the strides of all three arrays.
struct Axis {
  std::int64_t size;
  std::int64_t input;
  std::int64_t mask;
  std::int64_t output;
};

// Sorts the axes by stride, the smallest last, and merges axes that are contiguous with each other.
// Rows are then few and long, whatever the caller's axis order.
void arrange(std::vector<Axis>& axes) {
  axes.erase(std::remove_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size == 1; }),
             axes.end());
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return std::abs(a.output) > std::abs(b.output);
  });
  for (std::size_t i = axes.size(); i-- > 1;) {
    const Axis &outer = axes[i - 1], &inner = axes[i];
    const auto continues = [&](std::int64_t Axis::*stride) {
      return outer.*stride == inner.*stride * inner.size;
    };
    if (!continues(&Axis::input) || !continues(&Axis::mask) || !continues(&Axis::output)) continue;
    axes[i - 1] = {outer.size * inner.size, inner.input, inner.mask, inner.output};
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void set_rows(StageProblem& problem, const std::vector<Axis>& axes, Integers& memory) {
  std::int64_t* const numbers = memory.take(4 * axes.size());
  const std::size_t count = axes.size();
  problem.rows = {static_cast<int>(count), 1, numbers};
  problem.input.batch_strides = numbers + count;
  problem.mask.batch_strides = numbers + 2 * count;
  problem.output.batch_strides = numbers + 3 * count;
  for (std::size_t i = 0; i < count; ++i) {
    problem.rows.count *= axes[i].size;
    numbers[i] = axes[i].size;
    numbers[count + i] = axes[i].input;
    numbers[2 * count + i] = axes[i].mask;
    numbers[3 * count + i] = axes[i].output;
  }
}

// Gives a mask the axes of `scores`, to which it broadcasts.
void broadcast_mask(ArrayView& mask, const ArrayView& scores) {
  for (std::size_t i = 0; i < mask.shape.size(); ++i)
    if (mask.shape[i] == 1) mask.strides[i] = 0;
  const std::size_t missing = scores.shape.size() - mask.shape.size();
  mask.shape.insert(mask.shape.begin(), missing, 1);
  mask.strides.insert(mask.strides.begin(), missing, 0);
}

// The arguments of a stage; the mask's data is null if it has no mask.
struct StageArguments {
  Stage stage;
  double factor = 1;
  std::optional<std::size_t> axis{};  // the axis of softmax's rows; other stages have no rows
  ArrayView mask{};
};

py::object run(StageArguments arguments, ArrayView input, py::handle out, int threads) {
  const Shape shape = input.shape;
  ArrayView& mask = arguments.mask;
  StageProblem problem{};
  problem.stage = arguments.stage;
  problem.scalar = scalar_of(input.element);
  problem.factor = arguments.factor;
  const Result result(out, result_type_of(problem.scalar), shape, &input);
  result.forbid_overlap(input, true);
  if (mask.data) result.forbid_overlap(mask, false);

  const ArrayView& output = result.view;
  if (mask.data) {
    if (!broadcasts_to(mask.shape, shape))
      throw py::value_error("mask must broadcast to the shape of scores " + to_text(shape) +
                            ", got shape " + to_text(mask.shape));
    broadcast_mask(mask, input);
  }
  const auto axis_at = [&](std::size_t i) {
    return Axis{shape[i], input.strides[i], mask.data ? mask.strides[i] : 0, output.strides[i]};
  };
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (i != arguments.axis) axes.push_back(axis_at(i));
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return result.deliver();
  arrange(axes);
  Axis columns{1, 0, 0, 0};
  if (arguments.axis && !shape.empty()) {
    columns = axis_at(*arguments.axis);
  } else if (!axes.empty()) {
    columns = axes.back();
    axes.pop_back();
  }
  problem.columns = columns.size;
  problem.input = {.data = input.data, .element = input.element, .column_stride = columns.input};
  problem.mask = {.data = mask.data, .element = mask.element, .column_stride = columns.mask};
  problem.output = {.data = output.data, .element = output.element, .column_stride = columns.output};
  Integers memory;
  set_rows(problem, axes, memory);
  const double work = kWorkOfElement * static_cast<double>(problem.rows.count) *
                      static_cast<double>(problem.columns);
  run_work(work, [&](const StopSignal& signal) { run_stage(problem, threads, signal); });
  return result.deliver();
}

}  // namespace

py::object scale(py::handle scores, py::handle factor, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  const double number = number_of("factor", factor);
  ArrayView view;
  if (!take_view(view, "scores", scores, Accepts::floats)) return not_implemented();
  return run({.stage = Stage::scale, .factor = number}, view, out, thread_count);
}

py::object apply_mask(py::handle scores, py::handle mask, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  ArrayView view, mask_view;
  if (!take_view(view, "scores", scores, Accepts::floats) ||
      !take_view(mask_view, "mask", mask, Accepts::mask))
    return not_implemented();
  return run({.stage = Stage::apply_mask, .mask = mask_view}, view, out, thread_count);
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
  const std::size_t along = static_cast<std::size_t>(number < 0 ? number + axes : number);
  return run({.stage = Stage::softmax, .axis = along}, view, out, thread_count);
}

}  // namespace regard
