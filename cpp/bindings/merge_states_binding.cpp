// merge_attention_states.
#include <memory>

#include "../dispatch/merge_states.hpp"
#include "../dispatch/threads/count.hpp"
#include "arguments.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

std::vector<ArrayView> views_of(const char* name, const py::list& parts) {
  std::vector<ArrayView> views;
  views.reserve(parts.size());
  for (const py::handle part : parts) views.push_back(view_of(name, part, Accepts::storage));
  return views;
}

std::string at(const char* name, std::size_t part) {
  return std::string(name) + "[" + std::to_string(part) + "]";
}

void check_part(const std::vector<ArrayView>& outputs, const std::vector<ArrayView>& lses,
                std::size_t part) {
  const ArrayView &output = outputs[part], &lse = lses[part];
  if (output.axes() < 2 || lse.axes() < 1)
    throw py::value_error(at("outputs", part) + " must be (..., q_len, value_dim) and " +
                          at("lses", part) + " (..., q_len), got shapes " +
                          to_text(output.shape) + " and " + to_text(lse.shape));
  // Broadcasting would take the heads of one for the queries of the other.
  Shape column = output.shape;
  column.back() = 1;
  if (lse.shape == column)
    throw py::value_error(at("lses", part) +
                          " must be (..., q_len), without an axis for value_dim, got shape " +
                          to_text(lse.shape) + " beside " + to_text(output.shape) +
                          ": pass lse[..., 0]");
  if (output.size(1) != outputs[0].size(1))
    throw py::value_error("outputs must share value_dim, got " +
                          std::to_string(outputs[0].size(1)) + " and " +
                          std::to_string(output.size(1)) + " in " + at("outputs", part));
}

// The shape of the rows, (..., q_len).
Shape rows_of(const std::vector<ArrayView>& outputs, const std::vector<ArrayView>& lses) {
  std::vector<Shape> shapes;
  for (const ArrayView& view : outputs)
    shapes.emplace_back(view.shape.begin(), view.shape.end() - 1);
  for (const ArrayView& view : lses) shapes.push_back(view.shape);
  Shape rows;
  for (const Shape& shape : shapes) {
    if (broadcast_shape(rows, shape)) continue;
    std::string all;
    for (const Shape& each : shapes) all += (all.empty() ? "" : ", ") + to_text(each);
    throw py::value_error(
        "outputs without their last axis and lses must broadcast to one shape (..., q_len), got " +
        all);
  }
  return rows;
}

// Axes along which every operand goes on where the one behind them ends become one axis: a row's place
// is then found with fewer divisions.
void join_axes(BatchShape& rows, const std::vector<Operand*>& operands) {
  int kept = 0;
  for (int axis = 1; axis < rows.axes; ++axis) {
    if (rows.sizes[axis] == 1) continue;
    bool goes_on = true;
    for (const Operand* operand : operands)
      goes_on &= rows.sizes[kept] == 1 || operand->batch_strides[kept] ==
                                              rows.sizes[axis] * operand->batch_strides[axis];
    if (!goes_on) ++kept;
    rows.sizes[kept] = goes_on ? rows.sizes[kept] * rows.sizes[axis] : rows.sizes[axis];
    for (Operand* operand : operands) operand->batch_strides[kept] = operand->batch_strides[axis];
  }
  if (rows.axes > 0) rows.axes = kept + 1;
}

}  // namespace

bool are_states(const py::list& outputs, const py::list& lses) {
  for (const py::list* parts : {&outputs, &lses})
    for (const py::handle part : *parts)
      if (!is_native(part, Accepts::storage)) return false;
  return true;
}

py::tuple merge_attention_states(const py::list& output_parts, const py::list& lse_parts) {
  const std::vector<ArrayView> outputs = views_of("outputs", output_parts);
  const std::vector<ArrayView> lses = views_of("lses", lse_parts);
  if (outputs.empty() || outputs.size() != lses.size())
    throw py::value_error("outputs and lses must have as many parts, one or more, got " +
                          std::to_string(outputs.size()) + " and " + std::to_string(lses.size()));
  for (std::size_t part = 0; part < outputs.size(); ++part) check_part(outputs, lses, part);
  Shape shape = rows_of(outputs, lses);

  std::vector<const ArrayView*> states;
  for (const ArrayView& view : outputs) states.push_back(&view);
  const ResultType type = result_type_of(states);
  Scalar lse_type = scalar_of(type.element);
  for (const ArrayView& view : lses)
    if (view.element == Element::float64) lse_type = Scalar::float64;

  MergeProblem problem;
  problem.scalar = scalar_of(type.element);
  problem.rows = batch_of(shape);
  problem.columns = outputs[0].size(1);
  problem.parts = static_cast<std::int64_t>(outputs.size());
  const std::size_t parts = outputs.size();
  const std::unique_ptr<Operand[]> given(new Operand[2 * parts]);
  problem.outputs = given.get();
  problem.lses = given.get() + parts;
  std::vector<Operand*> operands{&problem.output, &problem.lse};
  for (std::size_t part = 0; part < parts; ++part) {
    set_rows(given[part], outputs[part], 1, problem.rows);
    set_rows(given[parts + part], lses[part], 0, problem.rows);
    operands.push_back(&given[part]);
    operands.push_back(&given[parts + part]);
  }

  const ArrayView lse = new_array("lse", result_type_of(lse_type), shape);
  shape.push_back(problem.columns);
  const ArrayView output = new_array("output", type, shape);
  set_rows(problem.output, output, 1, problem.rows);
  set_rows(problem.lse, lse, 0, problem.rows);
  join_axes(problem.rows, operands);
  const int threads = default_thread_count();
  run_without_gil([&](const StopSignal& signal) { merge_states(problem, threads, signal); });
  return py::make_tuple(output.array, lse.array);
}

}  // namespace regard
