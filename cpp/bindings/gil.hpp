// Letting go of the GIL and taking it back, also while the interpreter goes away.
//
// Before Python 3.14 a thread that asks for the GIL of a finalizing interpreter is ended by
// pthread_exit, whose unwinding runs the destructors of C++ frames without the GIL, and ends the
// process where one of them may not throw. Such a thread has nobody to report to: it sleeps here until
// the process is gone, which is what Python 3.14 does itself.
#pragma once

#include <pybind11/pybind11.h>

namespace regard {

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased();

 private:
  PyThreadState* state_;
};

// Takes the GIL for a moment to run signal handlers. True if one raised; the error is then set.
bool python_wants_stop(void*);

}  // namespace regard
