// The threads that run a loop: threads of the pool (pool.hpp), threads of an OpenMP runtime
// (team.hpp), or the calling thread. The tasks and the order in which results are merged are the
// same in each layer.
#pragma once

#include <functional>

namespace regard {

enum class ThreadingLayer { pool, openmp, serial };

// The layer of the process is chosen once, before it first runs more than one thread.
bool is_layer_chosen();
ThreadingLayer threading_layer();
// Both return false if another layer has run threads. may_choose_layer changes nothing. Before
// ThreadingLayer::openmp is chosen, its library must have been loaded (team.hpp).
bool may_choose_layer(ThreadingLayer layer);
bool choose_layer(ThreadingLayer layer);
// Chooses the layer unless one has been chosen before; returns whether it did.
bool choose_first_layer(ThreadingLayer layer);
// For tests, which run all layers in one process: also works when another layer is in use.
void exchange_layer(ThreadingLayer layer);

// The number of threads that run_together would use now if this many are requested: 1 without other
// threads. A layer is in use once several threads have been requested.
int available_threads(int threads);
// The largest number that available_threads has returned so far.
int most_threads_used();

// Runs member(thread) on the calling thread as thread 0 and, as they arrive, on up to `threads - 1`
// other threads as threads 1, 2, ... Returns when the caller and all other threads that began have
// returned. `member` must not throw, and must divide the work itself: other threads may arrive late
// or never. While the caller waits for others, it calls `while_waiting` every 50 ms, which must not
// throw either.
//
// A member may call run_together itself, as in a signal handler that computes. A member or
// `while_waiting` may fork the process: in the child, where the other threads do not exist,
// run_together returns without waiting for them, and fork_count() has changed.
void run_together(int threads, const std::function<void(int thread)>& member,
                  const std::function<void()>& while_waiting);

}  // namespace regard
