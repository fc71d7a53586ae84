// Rows of a cache in 8 bits.
#include <algorithm>
#include <cmath>

#include "../dispatch/quantize_rows.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "threading.hpp"

namespace regard {

py::tuple quantize_rows(py::handle object, bool rotates) {
  const ArrayView rows = view_of("rows", object, Accepts::floats);
  const auto given = py::reinterpret_borrow<py::array>(object);
  if (rows.element != Element::float32 || rows.axes() == 0 || rows.size(1) == 0 ||
      !(given.flags() & py::array::c_style))
    throw py::type_error("rows must be an array of float32 without gaps, of at least one column");
  const std::vector<py::ssize_t> shape(rows.shape.begin(), rows.shape.end());
  py::array_t<std::int8_t> to(shape);
  py::array_t<float> scales(std::vector<py::ssize_t>(shape.begin(), shape.end() - 1));
  QuantizeProblem problem;
  problem.rows = scales.size();
  problem.columns = rows.size(1);
  problem.rotates = rotates;
  problem.from = static_cast<const float*>(rows.data);
  problem.to = to.mutable_data();
  problem.scales = scales.mutable_data();
  const int threads = thread_count_of(py::none());
  run_without_gil([&](const StopSignal& signal) { quantize_rows(problem, threads, signal); });
  const bool are_finite = std::all_of(problem.scales, problem.scales + problem.rows,
                                      [](float scale) { return std::isfinite(scale); });
  return py::make_tuple(to, scales, are_finite);
}

}  // namespace regard
