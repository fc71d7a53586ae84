#include "pool.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>

#include "../../platform/cpus.hpp"
#include "../../platform/forks.hpp"
#include "../../platform/threads.hpp"
#include "wait.hpp"

namespace regard {
namespace {

struct Job {
  const std::function<void(int)>& member;
  int wanted;                   // workers that may still join
  int next_thread = 1;          // the number of the next one
  std::atomic<int> working{0};  // workers that have joined and not left
};

// Counts the calls in progress.
class Call {
 public:
  explicit Call(std::atomic<int>& calls) : calls_(calls) { ++calls_; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { --calls_; }

 private:
  std::atomic<int>& calls_;
};

// Workers beyond this number and the number of processors end when they have no work, so that one
// call with thousands of threads does not leave them in the process.
constexpr int kMostIdleWorkers = 64;

class Pool {
 public:
  void run(int threads, const std::function<void(int)>& member,
           const std::function<void()>& while_waiting) {
    const int forks = fork_count();
    const Call call(calls_);
    Job job{member, threads - 1};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      start_workers(threads - 1);
      jobs_.push_back(&job);
      offers_.fetch_add(1, std::memory_order_release);
      wake(job.wanted);
    }
    member(0);
    // In a child that was forked in the meantime, this pool is a dead copy whose mutex stays locked
    // forever.
    if (fork_count() != forks) return;
    const auto all_left = [&] { return job.working.load(std::memory_order_acquire) == 0; };
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.remove(&job);
    if (all_left()) return;
    const bool has_core = has_cores_;
    lock.unlock();
    // A sleeping thread wakes late, and much later if its processor sleeps too. In a call of
    // several loops this would happen after each of them.
    const bool done = spin_until(all_left, [=] { return has_core; });
    // A worker leaves with the mutex held, so no worker reads the job after this.
    lock.lock();
    if (done) return;
    while (!wake_caller_.wait_for(lock, kWaitingStep, all_left)) {
      lock.unlock();
      while_waiting();
      if (fork_count() != forks) return;
      lock.lock();
    }
  }

  // Called around fork(), so that no other thread holds the mutex while the process is copied.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // Wakes no more workers than have work: a pool that has served a call with 64 threads also serves
  // calls with 3.
  void wake(int count) {
    if (count >= sleeping_) {
      if (sleeping_ > 0) wake_worker_.notify_all();
      return;
    }
    for (int i = 0; i < count; ++i) wake_worker_.notify_one();
  }

  void start_workers(int count) {
    if (workers_ >= count) return;
    const int before = workers_;
    // If the system cannot provide more threads or memory, the workers that were started do the
    // work.
    while (workers_ < count && start_thread([](void* pool) { static_cast<Pool*>(pool)->work(); }, this)) ++workers_;
    if (workers_ == before) return;
    const int cpus = usable_cpus();
    has_cores_ = workers_ < cpus;
    most_idle_ = std::max(kMostIdleWorkers, cpus);
  }

  Job* open_job() {
    const auto found =
        std::find_if(jobs_.begin(), jobs_.end(), [](const Job* job) { return job->wanted > 0; });
    return found == jobs_.end() ? nullptr : *found;
  }

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      Job* job = open_job();
      if (!job) {
        const unsigned seen = offers_.load(std::memory_order_relaxed);
        const bool has_cores = has_cores_;
        lock.unlock();
        const bool offered =
            spin_until([&] { return offers_.load(std::memory_order_acquire) != seen; },
                       [&] { return has_cores && calls_.load(std::memory_order_relaxed) > 0; });
        lock.lock();
        if (offered || open_job()) continue;
        if (workers_ > most_idle_) {
          --workers_;
          return;
        }
        ++sleeping_;
        wake_worker_.wait(lock, [&] { return open_job() != nullptr; });
        --sleeping_;
        continue;
      }
      --job->wanted;
      const int thread = job->next_thread++;
      job->working.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job->member(thread);
      lock.lock();
      if (job->working.fetch_sub(1, std::memory_order_release) == 1) wake_caller_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_worker_;
  std::condition_variable wake_caller_;
  std::list<Job*> jobs_;
  std::atomic<unsigned> offers_{0};  // changes with every new job
  std::atomic<int> calls_{0};        // calls of run that have not returned
  int workers_ = 0;
  int sleeping_ = 0;
  int most_idle_ = kMostIdleWorkers;
  bool has_cores_ = true;  // one for each worker and one for a caller
};

// Never destroyed: its threads may outlive static destruction. A forked child has none of the
// threads and gets its own pool.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() {
  static const bool installed = [] {
    pool = new Pool;
    return at_fork([] { pool.load()->lock(); }, [] { pool.load()->unlock(); },
                   [] { pool = new Pool; });
  }();
  (void)installed;
  return *pool;
}

}  // namespace

void run_in_pool(int threads, const std::function<void(int thread)>& member,
                 const std::function<void()>& while_waiting) {
  the_pool().run(threads, member, while_waiting);
}

}  // namespace regard
