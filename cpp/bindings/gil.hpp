// Releases the GIL and reacquires it, also while the interpreter is being finalized.
//
// During finalization, only the thread that finalizes the interpreter may run Python. Before Python
// 3.14, pthread_exit ends any other thread that requests the GIL. Its unwinding runs the
// destructors of C++ frames without the GIL, and ends the process if a frame may not throw. A
// thread that requests the GIL after the interpreter's state is freed reads freed memory. Nothing
// waits for such a thread's result, so it sleeps here until the process has ended, as Python 3.14
// itself makes it do.
#pragma once

#include <pybind11/pybind11.h>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include "../dispatch/threads/parallel_for.hpp"

namespace regard {

namespace py = pybind11;

[[noreturn]] void sleep_until_exit();

// Returns call(), which may request the GIL. A thread that is ended there sleeps instead.
template <class Call>
auto until_exit(Call call) {
#if defined(__GLIBCXX__)
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    sleep_until_exit();
  }
#else
  return call();
#endif
}

// Returns the new reference that call() returns, or throws the error that it has set. What Python
// and NumPy run in it may release the GIL and request it again. This is then the innermost frame of
// C++, so that a thread that is ended there destroys no object without the GIL.
template <class Call>
py::object result_of_python(Call call) {
  PyObject* const result = until_exit(call);
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

template <class... Arguments>
py::object call_python(py::handle function, Arguments... arguments) {
  PyObject* const given[] = {nullptr, arguments.ptr()...};
  return result_of_python([&] {
    return PyObject_Vectorcall(function.ptr(), given + 1, sizeof...(arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  });
}

// Python code may compute the attribute.
inline bool has_attribute(py::handle object, const char* name) {
  return until_exit([&] { return PyObject_HasAttrString(object.ptr(), name) == 1; });
}

class GilReleased {
 public:
  GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased();

  // Acquires the GIL briefly to run signal handlers. True if one raised; the error is then set.
  bool handlers_raise();

  // Acquires the GIL briefly to call `function` with two integers. True if it raised; the error is
  // then set.
  bool raises(py::handle function, long long first, long long second);

 private:
  void acquire() noexcept;

  // A thread that holds the GIL while the interpreter is being finalized is the finalizing thread.
  bool finalizes_;
  PyThreadState* state_;
};

// Calls compute(signal) with the GIL released. All views must have been taken before, and the
// caller's references keep the arrays alive. A signal handler that raises (Ctrl-C) stops the
// computation.
template <class Compute>
void run_without_gil(Compute compute) {
  try {
    GilReleased released;
    const StopSignal signal{
        [](void* gil) { return static_cast<GilReleased*>(gil)->handlers_raise(); }, &released};
    compute(signal);
  } catch (const Stopped&) {
    throw py::error_already_set();
  }
}

// Below this many multiplications a call takes less than 10 us, and releasing and reacquiring the
// GIL would take a large part of it.
constexpr double kWorkWithinGil = 30e3;

// The same, but a short call keeps the GIL.
template <class Compute>
void run_work(double multiplications, Compute compute) {
  if (multiplications < kWorkWithinGil)
    compute(StopSignal{});
  else
    run_without_gil(compute);
}

}  // namespace regard
