// The process's worker threads: started when they are first needed, asleep when there is no work.
//
// Why this is the default layer, and not OpenMP: a parallel region ends when every thread of its team has
// arrived, including those that the system has not woken yet, and the threads then spin for milliseconds on
// cores that NumPy's BLAS needs next. Here a call ends when the tasks that were begun are done, and a worker
// spins for some tens of microseconds, longer only while a call is under way and each worker has a core to
// itself (docs/lab-notes.md compares the two).
#pragma once

#include <functional>

namespace regard {

// As run_together (layer.hpp).
void run_in_pool(int threads, const std::function<void(int thread)>& member,
                 const std::function<void()>& while_waiting);

}  // namespace regard
