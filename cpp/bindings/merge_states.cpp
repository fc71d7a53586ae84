// merge_attention_states.
#include <vector>

#include "../dispatch/compute.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "result.hpp"
#include "threading.hpp"

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
  // Broadcasting would mistake the heads of one array for the queries of the other.
  Shape column = output.shape;
  column[column.size() - 1] = 1;
  if (lse.shape == column)
    throw py::value_error(at("lses", part) +
                          " must be (..., q_len), without an axis for value_dim, got shape " +
                          to_text(lse.shape) + " with " + to_text(output.shape) +
                          ": pass lse[..., 0]");
  if (output.size(1) != outputs[0].size(1))
    throw py::value_error("outputs must share value_dim, got " +
                          std::to_string(outputs[0].size(1)) + " and " +
                          std::to_string(output.size(1)) + " in " + at("outputs", part));
}

// (..., q_len)
Shape shape_of_rows(const std::vector<ArrayView>& outputs, const std::vector<ArrayView>& lses) {
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

// Merges two adjacent axes if every operand continues along them as if they were one axis. Finding
// a row then takes fewer divisions.
void collapse_axes(BatchShape& rows, const std::vector<Operand*>& operands, Integers& memory) {
  const std::size_t axes = static_cast<std::size_t>(rows.axes);
  if (axes == 0) return;
  std::int64_t* const sizes = memory.take(axes);
  std::vector<std::int64_t*> strides;
  for (Operand* operand : operands) {
    strides.push_back(memory.take(axes));
    strides.back()[0] = operand->batch_strides[0];
  }
  int kept = 0;
  sizes[0] = rows.sizes[0];
  for (int axis = 1; axis < rows.axes; ++axis) {
    if (rows.sizes[axis] == 1) continue;
    bool continues = true;
    for (std::size_t i = 0; i < operands.size(); ++i)
      continues &= sizes[kept] == 1 ||
                   strides[i][kept] == rows.sizes[axis] * operands[i]->batch_strides[axis];
    if (!continues) ++kept;
    sizes[kept] = continues ? sizes[kept] * rows.sizes[axis] : rows.sizes[axis];
    for (std::size_t i = 0; i < operands.size(); ++i) strides[i][kept] = operands[i]->batch_strides[axis];
  }
  rows.axes = kept + 1;
  rows.sizes = sizes;
  for (std::size_t i = 0; i < operands.size(); ++i) operands[i]->batch_strides = strides[i];
}

bool are_native(const py::list& parts) {
  for (const py::handle part : parts)
    if (!is_native(part, Accepts::storage)) return false;
  return true;
}

}  // namespace

py::object merge_attention_states(const py::list& output_parts, const py::list& lse_parts,
                                  py::handle thread_count) {
  if (!are_native(output_parts) || !are_native(lse_parts)) return not_implemented();
  const std::vector<ArrayView> outputs = views_of("outputs", output_parts);
  const std::vector<ArrayView> lses = views_of("lses", lse_parts);
  const std::size_t parts = outputs.size();
  if (outputs.empty() || lses.size() != parts)
    throw py::value_error("outputs and lses must have the same number of parts, one or more, got " +
                          std::to_string(parts) + " and " + std::to_string(lses.size()));
  for (std::size_t part = 0; part < parts; ++part) check_part(outputs, lses, part);
  Shape shape = shape_of_rows(outputs, lses);
  const ResultType type = result_type_of(outputs);
  Scalar lse_type = scalar_of(type.element);
  for (const ArrayView& view : lses)
    if (view.element == Element::float64) lse_type = Scalar::float64;

  Integers memory;
  MergeProblem problem{};
  problem.scalar = scalar_of(type.element);
  problem.rows = batch_of(shape, memory);
  problem.columns = outputs[0].size(1);
  problem.parts = static_cast<std::int64_t>(parts);
  std::vector<Operand> given(2 * parts);
  problem.outputs = given.data();
  problem.lses = given.data() + parts;
  std::vector<Operand*> operands{&problem.output, &problem.lse};
  for (std::size_t part = 0; part < parts; ++part) {
    given[part] = rows_of(outputs[part], 1, problem.rows, memory);
    given[parts + part] = rows_of(lses[part], 0, problem.rows, memory);
    operands.push_back(&given[part]);
    operands.push_back(&given[parts + part]);
  }

  const ArrayView lse = new_array("lse", result_type_of(lse_type), shape);
  shape.push_back(problem.columns);
  const ArrayView output = new_array("output", type, shape);
  problem.output = rows_of(output, 1, problem.rows, memory);
  problem.lse = rows_of(lse, 0, problem.rows, memory);
  collapse_axes(problem.rows, operands, memory);
  const int threads = thread_count_of(thread_count);
  run_without_gil([&](const StopSignal& signal) { merge_states(problem, threads, signal); });
  return py::make_tuple(output.array, lse.array);
}

}  // namespace regard
