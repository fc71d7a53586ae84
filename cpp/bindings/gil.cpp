#include "gil.hpp"

#include <chrono>
#include <thread>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace regard {
namespace {

[[noreturn]] void sleep_forever() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

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
  PyObject* const result = PyObject_CallFunction(function.ptr(), "LL", first, second);
  Py_XDECREF(result);
  state_ = PyEval_SaveThread();
  return result == nullptr;
}

void GilReleased::acquire() noexcept {
  if (!finalizes_ && !Py_IsInitialized()) sleep_forever();
#if defined(__GLIBCXX__)
  try {
    PyEval_RestoreThread(state_);
  } catch (abi::__forced_unwind&) {
    sleep_forever();
  }
#else
  PyEval_RestoreThread(state_);
#endif
}

}  // namespace regard
