#include "team.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "../../platform/forks.hpp"
#include "wait.hpp"

namespace regard {
namespace {

std::atomic<const ParallelRegion*> library{nullptr};

// Only for this process: a child has none of the threads.
std::atomic<int> started_threads{1};  // the number that the system was able to start at once
std::atomic<bool> used_runtime{false};
std::atomic<bool> left_alone{false};

void forget_threads() {
  if (used_runtime && !library.load()->survives_forks) left_alone = true;
  started_threads = 1;
  used_runtime = false;
}

// Starts and ends this many threads, which exist at the same time.
bool can_start(int threads) {
  std::mutex mutex;
  std::condition_variable all_started;
  bool ends = false;
  std::vector<std::thread> started;
  bool could = true;
  try {
    started.reserve(static_cast<std::size_t>(threads));
    while (static_cast<int>(started.size()) < threads)
      started.emplace_back([&] {
        std::unique_lock<std::mutex> lock(mutex);
        all_started.wait(lock, [&] { return ends; });
      });
  } catch (const std::exception&) {
    could = false;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ends = true;
  }
  all_started.notify_all();
  for (std::thread& thread : started) thread.join();
  return could;
}

class Team {
 public:
  Team(const std::function<void(int)>& member, const std::function<void()>& while_waiting)
      : member_(member), while_waiting_(while_waiting) {}

  bool run(int thread) {
    if (thread == 0) return lead();
    // A thread that arrives after the calling thread has left `lead` finds no work.
    working_.fetch_add(1);
    member_(thread);
    if (working_.fetch_sub(1) == 1) {
      const std::lock_guard<std::mutex> lock(mutex_);
      wake_caller_.notify_one();
    }
    return true;
  }

 private:
  bool is_forked() const { return fork_count() != forks_; }

  bool lead() {
    member_(0);
    if (is_forked()) return false;
    const auto all_left = [&] { return working_.load() == 0; };
    if (spin_until(all_left, [] { return false; })) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!wake_caller_.wait_for(lock, kWaitingStep, all_left)) {
      lock.unlock();
      while_waiting_();
      if (is_forked()) return false;
      lock.lock();
    }
    return true;
  }

  const std::function<void(int)>& member_;
  const std::function<void()>& while_waiting_;
  const int forks_ = fork_count();
  std::atomic<int> working_{0};  // other threads that have begun and not ended
  std::mutex mutex_;
  std::condition_variable wake_caller_;
};

}  // namespace

void load_region(const ParallelRegion& region) {
  library = &region;
  static const bool installed = at_fork(nullptr, nullptr, forget_threads);
  (void)installed;
}

const ParallelRegion* loaded_region() { return library; }

bool is_left_alone() { return left_alone; }

int available_team(int threads) {
  if (left_alone) return 1;
  used_runtime = true;
  if (library.load()->is_inside()) return 1;
  if (threads > started_threads) {
    if (!can_start(threads - 1)) return 1;
    started_threads = threads;
  }
  return threads;
}

void run_in_team(int threads, const std::function<void(int thread)>& member,
                 const std::function<void()>& while_waiting) {
  Team team(member, while_waiting);
  library.load()->run(
      threads,
      [](void* context, int thread) { return static_cast<Team*>(context)->run(thread); }, &team);
}

}  // namespace regard
