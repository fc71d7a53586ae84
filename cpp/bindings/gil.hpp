// Releasing the GIL and taking it back, also while the interpreter is shutting down.
//
// Only the thread that finalizes the interpreter may run Python from then on. Before Python 3.14 any
// other that asks for the GIL is ended by pthread_exit, whose unwinding runs the destructors of C++
// frames without the GIL, and ends the process where one of them may not throw; asked after the
// interpreter's state is freed, it reads freed memory. Such a thread has nobody to report to: it
// sleeps here until the process is gone, which is what Python 3.14 does itself.
#pragma once

#include <pybind11/pybind11.h>

#include "../dispatch/threads/parallel_for.hpp"

namespace regard {

namespace py = pybind11;

class GilReleased {
 public:
  GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased();

  // Takes the GIL for a moment to run signal handlers. True if one raised; the error is then set.
  bool handlers_raise();

 private:
  void acquire() noexcept;

  // Who holds the GIL once the interpreter is being finalized is the thread that finalizes it.
  bool finalizes_;
  PyThreadState* state_;
};

// Calls compute(signal) with the GIL released. All views have been taken before, and the caller's references
// keep the arrays alive. A signal handler that raises (Ctrl-C) stops it.
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

// Below this many multiplications a call takes less than 10 us, and giving the GIL away and taking it back would
// be a good part of it.
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
