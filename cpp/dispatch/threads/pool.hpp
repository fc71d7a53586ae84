// The process's worker threads: started when first wanted, asleep when there is nothing to do.
//
// Why not OpenMP: a region there ends when every thread of its team has arrived, also one that the
// system has not woken yet, and its threads spin for milliseconds afterwards on cores that NumPy's
// BLAS wants next. Here a call ends when the tasks that somebody started are done, and a worker spins
// for some tens of microseconds, longer only while a call goes on and each has a core
// (docs/performance.md has the numbers of both).
#pragma once

#include <functional>

namespace regard {

// Runs member(thread) on the calling thread as thread 0 and, as they come, on up to `threads - 1`
// workers as threads 1, 2, ... Returns when the caller and every worker that began have returned.
// `member` must not throw, and must itself divide the work: a worker may come late or never. While
// the caller waits for workers it calls `while_waiting` every 50 ms, which must not throw either.
// Within a member, a nested call runs on its thread alone.
void run_together(int threads, const std::function<void(int thread)>& member,
                  const std::function<void()>& while_waiting);

}  // namespace regard
