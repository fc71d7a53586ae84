#include "parallel_for.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "../../platform/float_mode.hpp"
#include "../../platform/forks.hpp"
#include "layer.hpp"

namespace regard {
namespace {

constexpr std::int64_t kAskEveryNanoseconds = 50'000'000;

// The state of raise_at_look: no call writes to it.
struct RaisingLook {
  std::atomic<std::int64_t> number{0};
  std::atomic<int> signal{0};
};
alignas(64) std::atomic<std::int64_t> looks_made{0};
alignas(64) RaisingLook raising_look;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Tasks that are handed out in order. Threads that take tasks from different ranges do not share a
// cache line.
struct alignas(64) Range {
  std::atomic<std::int64_t> next{0};
  std::int64_t end{0};
};
// If there are more threads, some of them share a range.
constexpr int kMostRanges = 32;

struct Loop {
  const int threads;
  const StopSignal& signal;
  const TaskBody body;
  void* const context;
  Range* const ranges;
  const int range_count;
  const int forks = fork_count();
  // Every thread computes in the calling thread's mode. Workers inherit the mode of the thread that
  // started them, which another library may have changed: the bits would depend on which thread
  // runs a task.
  const std::uint64_t mode = float_mode();
  std::atomic<bool> stop{false};
  bool was_told_to_stop = false;  // only for the calling thread
  std::mutex error_mutex{};
  std::exception_ptr error{};

  // Whether this is a forked child, where the tasks that other threads had begun are never
  // finished.
  bool is_orphaned() const { return threads > 1 && fork_count() != forks; }

  // Called only on the calling thread. It runs signal handlers, which may fork.
  bool wants_stop() {
    if (!was_told_to_stop && signal.wants_stop)
      was_told_to_stop = signal.wants_stop(signal.context);
    return was_told_to_stop || is_orphaned();
  }

  void work(int thread) noexcept {
    const InFloatMode callers(mode);
    const StopSignal ask{[](void* loop) { return static_cast<Loop*>(loop)->wants_stop(); }, this};
    try {
      Worker worker(thread, stop, ask);
      const int first = static_cast<int>(std::int64_t{thread} * range_count / threads);
      for (int i = 0; i < range_count; ++i) {
        Range& range = ranges[(first + i) % range_count];
        while (!worker.should_stop()) {
          const std::int64_t task = range.next.fetch_add(1, std::memory_order_relaxed);
          if (task >= range.end) break;
          body(context, task, worker);
        }
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex);
      if (!error) error = std::current_exception();
      stop = true;
    }
  }
};

void run_loop(int threads, std::int64_t tasks, const StopSignal& signal, TaskBody body, void* context,
              Range* ranges, int range_count) {
  for (int i = 0; i < range_count; ++i) {
    ranges[i].next = tasks * i / range_count;
    ranges[i].end = tasks * (i + 1) / range_count;
  }
  Loop loop{threads, signal, body, context, ranges, range_count};
  run_together(
      threads, [&](int thread) { loop.work(thread); },
      [&] {
        if (loop.wants_stop()) loop.stop = true;
      });
  if (loop.was_told_to_stop) throw Stopped{};
  if (loop.is_orphaned()) throw Forked();
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace

Forked::Forked()
    : std::runtime_error(
          "this process was forked by a signal handler while its parent computed on several threads, "
          "which a child does not have: the result is lost in the child, call again") {}

StopClock::StopClock(const StopSignal& signal)
    : signal_(signal), last_asked_(signal.wants_stop ? now() : 0) {}

bool StopClock::wants_stop() {
  if (!signal_.wants_stop) return false;
  const std::int64_t look = looks_made.fetch_add(1, std::memory_order_relaxed) + 1;
  if (look == raising_look.number.load(std::memory_order_relaxed)) std::raise(raising_look.signal);
  const std::int64_t time = now();
  if (time - last_asked_ < kAskEveryNanoseconds) return false;
  last_asked_ = time;
  return signal_.wants_stop(signal_.context);
}

std::int64_t looks() { return looks_made; }

void raise_at_look(int signal, std::int64_t look) {
  raising_look.signal = signal;
  raising_look.number = looks_made + look;
}

Worker::Worker(int thread, std::atomic<bool>& stop, const StopSignal& signal)
    : thread_(thread), stop_(stop), clock_(signal) {}

bool Worker::should_stop() {
  if (stop_.load(std::memory_order_relaxed)) return true;
  if (thread_ != 0 || !clock_.wants_stop()) return false;
  stop_ = true;
  return true;
}

void parallel_for(int threads, std::int64_t tasks, Handout handout, const StopSignal& signal, TaskBody body,
                  void* context) {
  threads = available_threads(static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>(tasks, threads))));
  const int ranges = handout == Handout::by_range ? std::min(threads, kMostRanges) : 1;
  if (ranges == 1) {
    Range all;  // only this one: clearing all of them takes as long as some whole calls
    return run_loop(threads, tasks, signal, body, context, &all, 1);
  }
  Range some[kMostRanges];
  run_loop(threads, tasks, signal, body, context, some, ranges);
}

}  // namespace regard
