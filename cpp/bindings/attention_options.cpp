#include "attention_options.hpp"

#include <cmath>

#include "arguments.hpp"

namespace regard {
namespace {

std::string type_of(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// One whole number for all batch entries, or one each, in [lowest, highest].
Operand per_entry(const char* name, py::handle object, const AttentionProblem& problem,
                  const Shape& batch, const char* entries, std::int64_t lowest,
                  std::int64_t highest, std::int64_t& single, py::array& array) {
  const auto out_of_range = [&](const std::string& got) {
    const bool is_any = lowest == INT64_MIN && highest == INT64_MAX;
    return py::value_error(std::string(name) +
                           (is_any ? " must fit in 64 bits"
                                   : " must be from " + std::to_string(lowest) + " to " +
                                         std::to_string(highest)) +
                           ", got " + got);
  };
  Operand operand{};
  operand.element = Element::int64;
  if (PyLong_CheckExact(object.ptr())) {
    single = whole_number_of(name, object);
    if (single < lowest || single > highest) throw out_of_range(std::to_string(single));
    operand.data = &single;
    return operand;
  }
  const py::module_ numpy = py::module_::import("numpy");
  const py::array given = integers_of(name, object, "an integer or an array of integers");
  if (given.size() > 0) {
    const py::object least = numpy.attr("min")(given), most = numpy.attr("max")(given);
    if (least < py::int_(lowest)) throw out_of_range(py::str(least));
    if (most > py::int_(highest)) throw out_of_range(py::str(most));
  }
  array = given.attr("astype")("int64", py::arg("order") = "C");
  ArrayView view{name, Element::int64, array, {}, {}};
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
    view.shape.push_back(array.shape(axis));
    view.strides.push_back(array.strides(axis) / 8);
  }
  if (!broadcasts_to(view.shape, batch))
    throw py::value_error(std::string(name) + " must be an integer or broadcast to the " + entries +
                          " " + to_text(batch) + ", got shape " + to_text(view.shape));
  operand.data = const_cast<void*>(array.data());
  set_batch_strides(operand, view, 0, problem.batch);
  return operand;
}

std::int64_t reach_of(const char* side, py::handle object) {
  if (object.is_none()) return kUnbounded;
  const std::string name = std::string("window's ") + side;
  const std::int64_t reach = whole_number_of(name.c_str(), object);
  if (reach < 0)
    throw py::value_error("window must have sides of None or at least 0, got " +
                          std::to_string(reach) + " on the " + side);
  return reach;
}

void set_window(AttentionProblem& problem, py::handle window, bool is_causal) {
  problem.window_left = problem.window_right = kUnbounded;
  if (!window.is_none()) {
    if (!PySequence_Check(window.ptr()) || PyUnicode_Check(window.ptr()) ||
        PyBytes_Check(window.ptr()))
      throw py::type_error("window must be a pair (left, right) of integers or None, got " +
                           type_of(window));
    const py::sequence pair = py::reinterpret_borrow<py::sequence>(window);
    const Py_ssize_t sides = PySequence_Size(window.ptr());
    if (sides < 0) {  // an array without axes
      PyErr_Clear();
      throw py::type_error("window must be a pair (left, right) of integers or None, got " +
                           type_of(window));
    }
    if (sides != 2)
      throw py::value_error("window must be a pair (left, right), got " + std::to_string(sides) +
                            " numbers");
    problem.window_left = reach_of("left", pair[0]);
    problem.window_right = reach_of("right", pair[1]);
  }
  if (is_causal) problem.window_right = 0;
}

// One real number for every query head; a number alone where there is no heads axis to speak of.
void set_per_head(const char* name, py::handle object, std::int64_t heads,
                  bool may_be_minus_infinity, std::vector<double>& numbers) {
  const py::array given = as_array(name, object);
  const char kind = given.dtype().kind();
  const bool is_bfloat16 = py::str(given.dtype()).cast<std::string>() == "bfloat16";
  if (kind != 'f' && kind != 'i' && kind != 'u' && !is_bfloat16)
    throw py::type_error(std::string(name) + " must be an array of real numbers, got " +
                         (given.ndim() == 0 ? type_of(object)
                                            : "an array of " + std::string(py::str(given.dtype()))));
  const py::array_t<double, py::array::c_style> values(given.attr("astype")("float64"));
  const bool is_number = given.ndim() == 0 && heads == 1;
  if (!is_number && (given.ndim() != 1 || given.shape(0) != heads)) {
    Shape shape(given.shape(), given.shape() + given.ndim());
    throw py::value_error(std::string(name) + " must have one number for every query head, shape (" +
                          std::to_string(heads) + ",), got shape " + to_text(shape));
  }
  numbers.assign(values.data(), values.data() + heads);
  for (const double number : numbers)
    if (!std::isfinite(number) && !(may_be_minus_infinity && number < 0))
      throw py::value_error(std::string(name) + " must be finite" +
                            (may_be_minus_infinity ? " or -inf" : "") + ", got " +
                            std::string(py::str(py::float_(number))));
}

Precision precision_of(py::handle object, const AttentionProblem& problem) {
  if (object.is_none()) return Precision::full;
  if (!PyUnicode_Check(object.ptr()))
    throw py::type_error("precision must be None or 'int8', got " + type_of(object));
  if (object.cast<std::string>() != "int8")
    throw py::value_error("precision must be None or 'int8', got " +
                          std::string(py::repr(object)));
  if (problem.scalar != Scalar::float32)
    throw py::value_error(
        "precision 'int8' needs query, key and value of float32, float16 or bfloat16, got a result "
        "type of float64");
  if (problem.head_dim > kMostInt8Dim)
    throw py::value_error("precision 'int8' needs a head_dim of at most " +
                          std::to_string(kMostInt8Dim) + ", got " +
                          std::to_string(problem.head_dim));
  return Precision::int8;
}

}  // namespace

void set_options(AttentionProblem& problem, const AttentionOptions& options, const Shape& batch,
                 const char* entries, OptionMemory& memory) {
  problem.scale = options.scale.is_none() ? 1.0 / std::sqrt(static_cast<double>(problem.head_dim))
                                          : finite_number_of("scale", options.scale);
  problem.precision = precision_of(options.precision, problem);
  problem.softcap = 0;
  if (!options.softcap.is_none()) {
    problem.softcap = finite_number_of("softcap", options.softcap);
    if (problem.softcap <= 0)
      throw py::value_error("softcap must be greater than 0, or None for no cap, got " +
                            std::string(py::str(options.softcap)));
  }
  set_window(problem, options.window, flag_of("is_causal", options.is_causal));
  problem.query_offset =
      per_entry("query_offset", options.query_offset, problem, batch, entries, INT64_MIN, INT64_MAX,
                memory.offset, memory.offsets);
  problem.key_lengths.data = nullptr;
  if (!options.key_lengths.is_none())
    problem.key_lengths = per_entry("key_lengths", options.key_lengths, problem, batch, entries, 0,
                                    problem.kv_len, memory.length, memory.lengths);
  problem.alibi_slopes.data = nullptr;
  problem.sinks = nullptr;
  if (!options.alibi_slopes.is_none()) {
    set_per_head("alibi_slopes", options.alibi_slopes, problem.heads, false, memory.slopes);
    problem.alibi_slopes.data = memory.slopes.data();
    problem.alibi_slopes.element = Element::float64;
    problem.alibi_slopes.head_stride = 1;
  }
  if (!options.sinks.is_none()) {
    set_per_head("sinks", options.sinks, problem.heads, true, memory.sinks);
    problem.sinks = memory.sinks.data();
  }
}

}  // namespace regard
