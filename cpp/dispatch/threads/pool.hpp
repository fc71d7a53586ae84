// The process's worker threads: started when they are first needed, asleep when there is no work.
//
// This is the default layer rather than OpenMP for two reasons. An OpenMP region ends only when
// every thread of its team has arrived, including threads that the system has not woken yet. The
// threads then spin for milliseconds on cores that NumPy's BLAS needs next. Here a call ends when
// all begun tasks are done. A worker spins for some tens of microseconds, and longer only while a
// call is in progress and each worker has its own core. docs/lab-notes.md
// compares the two.
#pragma once

#include <functional>

namespace regard {

// As run_together (layer.hpp).
void run_in_pool(int threads, const std::function<void(int thread)>& member,
                 const std::function<void()>& while_waiting);

}  // namespace regard
