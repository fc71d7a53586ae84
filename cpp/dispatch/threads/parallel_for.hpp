// A loop over tasks on several threads that passes errors and Ctrl-C to the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace regard {

// Asks whether the caller wants to stop (Ctrl-C). Called only on the calling thread.
struct StopSignal {
  bool (*wants_stop)(void* context);
  void* context;
};

// Thrown when a StopSignal requested it. Results are then incomplete.
struct Stopped {};

// Thrown in a child that a signal handler forked while its parent computed on several threads. The
// child has none of the other threads, and the tasks that they had begun are never finished.
struct Forked : std::runtime_error {
  Forked();
};

// Asks a StopSignal at most every 50 ms, however often it is called.
class StopClock {
 public:
  explicit StopClock(const StopSignal& signal);
  bool wants_stop();

 private:
  const StopSignal& signal_;
  std::int64_t last_asked_;
};

// For tests. A look is an occasion at which a calling thread could ask its StopSignal. looks()
// returns the number of looks in this process. raise_at_look makes the calling thread raise a
// signal at a look from now on, counted from 1.
std::int64_t looks();
void raise_at_look(int signal, std::int64_t look);

// A task's view of the loop that runs it.
class Worker {
 public:
  Worker(int thread, std::atomic<bool>& stop, const StopSignal& signal);
  int thread() const { return thread_; }
  // To be called between pieces of work of a few milliseconds. The calling thread asks the signal;
  // the others read its answer.
  bool should_stop();

 private:
  int thread_;
  std::atomic<bool>& stop_;
  StopClock clock_;
};

// Determines which task a thread takes next. In either case each task runs once, and its result
// does not depend on the thread.
enum class Handout {
  // The first remaining task: threads work on neighboring tasks and share the data that these read,
  // such as a head's keys.
  in_order,
  // The first remaining task of the thread's own range, then of another thread's range. The next
  // loop over the same number of tasks assigns the same range to thread number n, which finds the
  // data that it wrote in its own cache. If the other core's cache is far away, a product of 512
  // otherwise took a quarter longer. The caller is always number 0. The pool's workers take the
  // other numbers as they arrive, so with more than two threads some get another range.
  by_range,
};

using TaskBody = void (*)(void* context, std::int64_t task, Worker& worker);

// Runs body(context, task, worker) for every task in [0, tasks) on up to `threads` threads. Rethrows the first
// exception that a task throws; throws Stopped or Forked.
void parallel_for(int threads, std::int64_t tasks, Handout handout, const StopSignal& signal, TaskBody body,
                  void* context);

template <class Body>
void parallel_for(int threads, std::int64_t tasks, Handout handout, const StopSignal& signal, Body&& body) {
  parallel_for(
      threads, tasks, handout, signal,
      [](void* context, std::int64_t task, Worker& worker) {
        (*static_cast<std::remove_reference_t<Body>*>(context))(task, worker);
      },
      &body);
}

template <class Body>
void parallel_for(int threads, std::int64_t tasks, const StopSignal& signal, Body&& body) {
  parallel_for(threads, tasks, Handout::in_order, signal, body);
}

}  // namespace regard
