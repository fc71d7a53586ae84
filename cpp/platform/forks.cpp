#include "forks.hpp"

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace regard {

bool at_fork([[maybe_unused]] AtFork before, [[maybe_unused]] AtFork after_in_parent,
             [[maybe_unused]] AtFork after_in_child) {
#if defined(_WIN32)
  return true;
#else
  return pthread_atfork(before, after_in_parent, after_in_child) == 0;
#endif
}

}  // namespace regard
