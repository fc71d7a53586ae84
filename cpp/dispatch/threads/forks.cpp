#include "forks.hpp"

#include <pthread.h>

#include <atomic>

namespace regard {
namespace {

std::atomic<int> forks{0};

}  // namespace

void watch_forks() {
  static const int installed = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)installed;
}

int fork_count() { return forks.load(std::memory_order_relaxed); }

}  // namespace regard
