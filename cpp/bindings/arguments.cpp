#include "arguments.hpp"

#include <cmath>
#include <string>

#include "arrays.hpp"
#include "gil.hpp"

namespace regard {
namespace {

bool is_numpy_bool(py::handle value) {
  const std::string name = kind_of(value);
  return name == "numpy.bool" || name == "numpy.bool_";
}

// Integers and floats, and types that other packages register with NumPy and that are no wider than
// float64: bfloat16, but no complex type.
bool is_real_type(const py::dtype& type) {
  const char kind = type.kind();
  if (type.num() < kFirstUserType) return kind == 'f' || kind == 'i' || kind == 'u';
  const py::module_ numpy = py::module_::import("numpy");
  return call_python(numpy.attr("can_cast"), type, py::dtype::of<double>()).cast<bool>();
}

// A Python float or int, or a NumPy scalar or 0-d array of real numbers.
bool is_real_number(py::handle value) {
  if (PyFloat_Check(value.ptr()) || PyLong_CheckExact(value.ptr())) return true;
  const py::module_ numpy = py::module_::import("numpy");
  if (!py::isinstance(value, numpy.attr("generic")) && !py::isinstance<py::array>(value))
    return false;
  return value.attr("ndim").cast<int>() == 0 && is_real_type(py::dtype(value.attr("dtype")));
}

}  // namespace

std::string kind_of(py::handle value) { return Py_TYPE(value.ptr())->tp_name; }

std::string text_of(py::handle value) {
  const py::object text = result_of_python([&] { return PyObject_Str(value.ptr()); });
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

py::object index_of(const char* name, py::handle value) {
  if (!PyBool_Check(value.ptr()) && PyIndex_Check(value.ptr())) {
    try {
      return result_of_python([&] { return PyNumber_Index(value.ptr()); });
    } catch (py::error_already_set& error) {
      // An array has the method, but returns an integer only if it has one element.
      if (!error.matches(PyExc_TypeError)) throw;
    }
  }
  throw py::type_error(std::string(name) + " must be an integer, got " + kind_of(value));
}

std::int64_t integer_of(const char* name, py::handle value) {
  const py::object index = index_of(name, value);
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0)
    throw py::value_error(std::string(name) + " must fit in 64 bits, got " + text_of(index));
  return number;
}

bool flag_of(const char* name, py::handle value) {
  if (value.ptr() == Py_True) return true;
  if (value.ptr() == Py_False) return false;
  if (is_numpy_bool(value)) return value.cast<bool>();
  throw py::type_error(std::string(name) + " must be True or False, got " + kind_of(value));
}

double number_of(const char* name, py::handle value) {
  if (!is_real_number(value))
    throw py::type_error(std::string(name) + " must be a real number, got " + kind_of(value));
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw py::error_already_set();
    PyErr_Clear();
    throw py::value_error(std::string(name) + " must fit in a float64, got a larger integer");
  }
  return number;
}

double finite_number_of(const char* name, py::handle value) {
  const double number = number_of(name, value);
  if (!std::isfinite(number))
    throw py::value_error(std::string(name) + " must be finite, got " + text_of(value));
  return number;
}

}  // namespace regard
