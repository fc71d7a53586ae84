#include "gil.hpp"

#include <chrono>
#include <thread>

namespace regard {

void sleep_until_exit() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

GilReleased::GilReleased() : finalizes_(!Py_IsInitialized()), state_(PyEval_SaveThread()) {}

GilReleased::~GilReleased() { acquire(); }

bool GilReleased::handlers_raise() {
  acquire();
  const bool raised = PyErr_CheckSignals() != 0;
  state_ = PyEval_SaveThread();
  return raised;
}

bool GilReleased::raises(py::handle function, long long first, long long second) {
  acquire();
  PyObject* const result =
      until_exit([&] { return PyObject_CallFunction(function.ptr(), "LL", first, second); });
  Py_XDECREF(result);
  state_ = PyEval_SaveThread();
  return result == nullptr;
}

void GilReleased::acquire() noexcept {
  if (!finalizes_ && !Py_IsInitialized()) sleep_until_exit();
  until_exit([this] { PyEval_RestoreThread(state_); });
}

}  // namespace regard
