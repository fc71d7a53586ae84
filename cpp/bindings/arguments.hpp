// Numbers and flags from Python. Each function throws TypeError for the wrong kind of object, and
// ValueError for a number out of range; both name the argument.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace regard {

namespace py = pybind11;

// The name of an object's type.
std::string kind_of(py::handle value);

// str(value) in UTF-8. What UTF-8 cannot encode, such as half a surrogate pair, is escaped.
std::string text_of(py::handle value);

bool flag_of(const char* name, py::handle value);

double number_of(const char* name, py::handle value);
double finite_number_of(const char* name, py::handle value);

// An int of any size.
py::object index_of(const char* name, py::handle value);

std::int64_t integer_of(const char* name, py::handle value);

}  // namespace regard
