// The process's worker threads: started when they are first needed, asleep when there is no work.
//
// Why not OpenMP: a parallel region ends when every thread of its team has arrived, including those
// that the system has not woken yet, and the threads then spin for milliseconds on cores that NumPy's
// BLAS needs next. Here a call ends when the tasks that were begun are done, and a worker spins for
// some tens of microseconds, longer only while a call is under way and each worker has a core to
// itself (docs/lab-notes.md compares the two).
#pragma once

#include <functional>

namespace regard {

// Runs member(thread) on the calling thread as thread 0 and, as they come, on up to `threads - 1`
// workers as threads 1, 2, ... Returns when the caller and every worker that began have returned.
// `member` must not throw, and must itself divide the work: a worker may come late or never. While
// the caller waits for workers, it calls `while_waiting` every 50 ms, which must not throw either.
//
// A member may call run_together itself, as a signal handler does that computes. A member or
// `while_waiting` may fork the process: in the child, where the workers do not exist, run_together
// returns without waiting for them, and fork_count() has changed.
void run_together(int threads, const std::function<void(int thread)>& member,
                  const std::function<void()>& while_waiting);

// How often the process was forked on the way from the one that first used workers to this one.
int fork_count();

}  // namespace regard
