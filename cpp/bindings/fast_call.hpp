// Functions of the module that are called for every small problem, in CPython's own calling
// convention: pybind11's overload dispatch takes as long as attention to six words.
#pragma once

#include <string>
#include <utility>

#include "gil.hpp"

namespace regard {

namespace py = pybind11;

template <auto kFunction>
struct FastCall;

// Functions of handles. All arguments are positional and required.
template <class... Handles, py::object (*kFunction)(Handles...)>
struct FastCall<kFunction> {
  static PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) noexcept {
    return call(arguments, count, std::index_sequence_for<Handles...>());
  }

  static PyMethodDef method(const char* name) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(
                      static_cast<PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t)>(call))),
            METH_FASTCALL, nullptr};
  }

 private:
  template <std::size_t... kIndex>
  static PyObject* call(PyObject* const* arguments, Py_ssize_t count,
                        std::index_sequence<kIndex...>) noexcept {
    constexpr Py_ssize_t kCount = sizeof...(Handles);
    try {
      if (count != kCount)
        throw py::type_error("expected " + std::to_string(kCount) + " arguments, got " +
                             std::to_string(count));
      // What NumPy and Python run here may release the GIL and request it again.
      return until_exit([&] { return kFunction(py::handle(arguments[kIndex])...).release().ptr(); });
    } catch (py::error_already_set& error) {
      error.restore();
    } catch (...) {
      py::detail::try_translate_exceptions();
    }
    return nullptr;
  }
};

}  // namespace regard
