// Releasing the GIL and taking it back, also while the interpreter is being finalized.
//
// From then on only the thread that finalizes the interpreter may run Python. Before Python 3.14, any
// other thread that asks for the GIL is ended by pthread_exit, whose unwinding runs the destructors of
// C++ frames without the GIL and ends the process where one of them may not throw; a thread that asks
// after the interpreter's state is freed reads freed memory. Nothing waits for such a thread's result,
// so it sleeps here until the process has ended, which is what Python 3.14 itself makes it do.
#pragma once

#include <pybind11/pybind11.h>

namespace regard {

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

  // A thread that holds the GIL while the interpreter is being finalized is the one that finalizes it.
  bool finalizes_;
  PyThreadState* state_;
};

}  // namespace regard
