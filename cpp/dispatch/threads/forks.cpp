#include "forks.hpp"

#include <atomic>

#include "../../platform/forks.hpp"

namespace regard {
namespace {

std::atomic<int> forks{0};

}  // namespace

void watch_forks() {
  static const bool installed = at_fork(nullptr, nullptr, [] { ++forks; });
  (void)installed;
}

int fork_count() { return forks.load(std::memory_order_relaxed); }

}  // namespace regard
