// Quantizes rows of a cache to fewer bits.
#include "../dispatch/compute.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "threading.hpp"

namespace regard {
namespace {

Element element_named(const std::string& form) {
  if (form == "int8") return Element::int8;
  return form == "float8" ? Element::float8 : Element::q4_1;
}

}  // namespace

py::tuple quantized_rows(py::handle object, const std::string& form, bool rotates) {
  const ArrayView rows = view_of("rows", object, Accepts::floats);
  const auto given = py::reinterpret_borrow<py::array>(object);
  if (rows.element != Element::float32 || rows.axes() == 0 || rows.size(1) == 0 ||
      !(given.flags() & py::array::c_style))
    throw py::type_error("rows must be a contiguous array of float32 with at least one column");
  QuantizeProblem problem{};
  problem.element = element_named(form);
  problem.columns = rows.size(1);
  problem.rows = problem.columns > 0 ? given.size() / problem.columns : 0;
  problem.rotates = rotates;
  problem.from = static_cast<const float*>(rows.data);
  const bool has_groups = problem.element == Element::q4_1;
  if (has_groups && problem.columns % kGroupOfFourBits != 0)
    throw py::value_error("rows must have a multiple of " + std::to_string(kGroupOfFourBits) + " columns");
  std::vector<py::ssize_t> shape(rows.shape.begin(), rows.shape.end());
  std::vector<py::ssize_t> of_scales(shape.begin(), shape.end() - 1);
  if (has_groups) {
    shape.back() /= 2;
    of_scales.push_back(2 * problem.columns / kGroupOfFourBits);
  }
  const py::dtype type = problem.element == Element::int8 ? py::dtype::of<std::int8_t>() : py::dtype::of<std::uint8_t>();
  py::array to(type, shape);
  py::object scales = py::none();
  problem.to = to.mutable_data();
  if (problem.element != Element::float8) {
    py::array array(has_groups ? py::dtype("float16") : py::dtype::of<float>(), of_scales);
    problem.scales = array.mutable_data();
    scales = std::move(array);
  }
  const int threads = thread_count_of(py::none());
  bool are_held = true;
  run_without_gil([&](const StopSignal& signal) { are_held = quantize_rows(problem, threads, signal); });
  return py::make_tuple(to, scales, are_held);
}

}  // namespace regard
