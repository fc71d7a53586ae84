// A loop over tasks on several threads, which carries errors and Ctrl-C to the caller.
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

// Thrown when a StopSignal said so. Results are incomplete then.
struct Stopped {};

// Thrown in a child that a signal handler forked while its parent computed on several threads. The
// child has none of the others, and what they had begun is never finished.
struct Forked : std::runtime_error {
  Forked();
};

// Asks a StopSignal every 50 ms at most, however often it is asked itself.
class StopClock {
 public:
  explicit StopClock(const StopSignal& signal);
  bool wants_stop();

 private:
  const StopSignal& signal_;
  std::int64_t last_asked_;
};

// For tests. Whenever a calling thread could ask its StopSignal, that is a look: how many there were in
// this process, and a signal that the calling thread raises at a look from now on, the first being 1.
std::int64_t looks();
void raise_at_look(int signal, std::int64_t look);

// What a task knows of the loop that runs it.
class Worker {
 public:
  Worker(int thread, std::atomic<bool>& stop, const StopSignal& signal);
  int thread() const { return thread_; }
  // To be asked between pieces of work of a few milliseconds. The calling thread asks the signal,
  // the others read its answer.
  bool should_stop();

 private:
  int thread_;
  std::atomic<bool>& stop_;
  StopClock clock_;
};

// Which task a thread takes next. In any case each task is done once, and its result does not depend on who does it.
enum class Handout {
  // The first that is left: threads work on neighbors at a time, and share what these read, such as a head's keys.
  in_order,
  // The first that is left of a range of its own, then of another thread's range. A loop over as many tasks gives
  // thread number n the same range again, and it finds in its own cache what it wrote there: where the other core's
  // cache is far away, a product of 512 otherwise took a quarter longer. The caller is always number 0; the pool's
  // workers take the others as they arrive, so of more than two threads some get another range.
  by_range,
};

using TaskBody = void (*)(void* context, std::int64_t task, Worker& worker);

// Runs body(context, task, worker) for every task in [0, tasks) on up to `threads` threads. Rethrows the first
// exception that a task throws; throws Stopped or Forked.
void parallel_for(int threads, std::int64_t tasks, Handout handout, const StopSignal& signal, TaskBody body,
                  void* context);

// For counting.hpp: while there is an observer, loops run on the calling thread, and it is told of each loop and after
// each task.
struct LoopObserver {
  void (*begin_loop)(int threads, std::int64_t tasks, Handout handout);
  void (*end_task)();
};
void observe_loops(const LoopObserver* observer);

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
