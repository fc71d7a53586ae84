// Letting go of the GIL and taking it back, also while the interpreter goes away.
//
// Only the thread that finalizes the interpreter may run Python from then on. Before Python 3.14 any
// other that asks for the GIL is ended by pthread_exit, whose unwinding runs the destructors of C++
// frames without the GIL, and ends the process where one of them may not throw; asked after the
// interpreter's state is freed, it reads freed memory. Such a thread has nobody to report to: it
// sleeps here until the process is gone, which is what Python 3.14 does itself.
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

  // Who holds the GIL once the interpreter is being finalized is the thread that finalizes it.
  bool finalizes_;
  PyThreadState* state_;
};

}  // namespace regard
