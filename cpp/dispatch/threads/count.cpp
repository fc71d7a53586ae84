#include "count.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "../../platform/cpus.hpp"

namespace regard {
namespace {

struct ThreadChoice {
  int threads;  // 0: as many as there are CPUs
  std::string reason;
};

using Clock = std::chrono::steady_clock;
// A program may change its CPUs (taskset, sched_setaffinity) at any time. Asking takes a tenth of a
// small call, so the answer is used again within this time.
constexpr Clock::duration kSameCpus = std::chrono::milliseconds(10);

int current_cpus() {
  static std::atomic<Clock::rep> asked_at{0};
  static std::atomic<int> cpus{0};
  const Clock::rep now = Clock::now().time_since_epoch().count();
  if (cpus.load(std::memory_order_relaxed) == 0 ||
      now - asked_at.load(std::memory_order_relaxed) >= kSameCpus.count()) {
    cpus.store(usable_cpus(), std::memory_order_relaxed);
    asked_at.store(now, std::memory_order_relaxed);
  }
  return cpus.load(std::memory_order_relaxed);
}

std::atomic<int> set_by_caller{0};

ThreadChoice choose_from_environment() {
  if (const char* text = std::getenv("REGARD_NUM_THREADS"); text && *text) {
    char* end = nullptr;
    const long threads = std::strtol(text, &end, 10);
    if (*end != '\0' || threads < 1 || threads > 1 << 16)
      throw std::invalid_argument(
          "REGARD_NUM_THREADS must be a whole number from 1 to 65536, got '" + std::string(text) +
          "'");
    return {static_cast<int>(threads), "REGARD_NUM_THREADS"};
  }
  // OpenMP's variable may be a list, with one number for each nesting level. We do not reject any
  // value.
  if (const char* text = std::getenv("OMP_NUM_THREADS"); text && *text) {
    const long threads = std::strtol(text, nullptr, 10);
    if (threads >= 1 && threads <= 1 << 16) return {static_cast<int>(threads), "OMP_NUM_THREADS"};
  }
  return {0, "CPUs that this process may use"};
}

const ThreadChoice& choice_of_environment() {
  // Never destroyed: threads may compute while the process exits.
  static const ThreadChoice& choice = *new ThreadChoice(choose_from_environment());
  return choice;
}

}  // namespace

int default_thread_count() {
  const int threads = set_by_caller.load(std::memory_order_relaxed);
  if (threads > 0) return threads;
  const int chosen = choice_of_environment().threads;
  return chosen > 0 ? chosen : current_cpus();
}

std::string default_thread_count_reason() {
  return set_by_caller.load(std::memory_order_relaxed) > 0 ? "set_num_threads"
                                                           : choice_of_environment().reason;
}

void set_thread_count(int threads) { set_by_caller.store(threads, std::memory_order_relaxed); }

void limit_thread_count(int threads) noexcept {
  int by_environment = 0;
  try {
    const int chosen = choice_of_environment().threads;
    by_environment = chosen > 0 ? chosen : usable_cpus();
  } catch (...) {
    // The environment's number is invalid. The next call that needs it reports that.
  }
  set_thread_count(threads == by_environment ? 0 : threads);
}

}  // namespace regard
