#include "signals.hpp"

#include <initializer_list>

namespace regard {

#if defined(_WIN32)

// On Windows, a signal runs in a thread that the system creates for it.
SignalsBlocked::SignalsBlocked() {}
SignalsBlocked::~SignalsBlocked() {}

#else

// Faults, which a thread itself causes, are not blocked.
SignalsBlocked::SignalsBlocked() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before_);
}
SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

#endif

}  // namespace regard
