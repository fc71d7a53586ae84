#include "forks.hpp"

#include <atomic>

#if !defined(_WIN32) && !defined(__EMSCRIPTEN__)
#include <pthread.h>
#endif

namespace regard {
namespace {

std::atomic<int> forks{0};

}  // namespace

bool at_fork([[maybe_unused]] AtFork before, [[maybe_unused]] AtFork after_in_parent,
             [[maybe_unused]] AtFork after_in_child) {
#if defined(_WIN32) || defined(__EMSCRIPTEN__)
  return true;
#else
  return pthread_atfork(before, after_in_parent, after_in_child) == 0;
#endif
}

void watch_forks() {
  static const bool installed = at_fork(nullptr, nullptr, [] { ++forks; });
  (void)installed;
}

int fork_count() { return forks.load(std::memory_order_relaxed); }

}  // namespace regard
