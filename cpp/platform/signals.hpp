// Signals of the operating system.
#pragma once

#if !defined(_WIN32)
#include <signal.h>
#endif

namespace regard {

// Threads that are started during its lifetime receive no signals: signals belong to the threads of
// the program.
class SignalsBlocked {
 public:
  SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked();

#if !defined(_WIN32)
 private:
  sigset_t before_;
#endif
};

}  // namespace regard
