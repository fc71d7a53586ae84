// Which threads run a loop: those of the pool (pool.hpp), those of an OpenMP runtime (team.hpp), or the
// calling thread. The tasks and the order in which results are merged are the same in each.
#pragma once

#include <functional>
#include <stdexcept>

namespace regard {

enum class ThreadingLayer { pool, openmp, serial };

// Thrown when another layer has run threads.
struct LayerInUse : std::runtime_error {
  explicit LayerInUse(ThreadingLayer layer);
  ThreadingLayer layer;
};

// The layer of the process is chosen once, before it first runs more than one thread.
bool is_layer_chosen();
ThreadingLayer threading_layer();
// Both throw LayerInUse where another one may not be chosen any more; the first only looks. Before
// ThreadingLayer::openmp is chosen, its library must have been loaded (team.hpp).
void check_layer(ThreadingLayer layer);
void choose_layer(ThreadingLayer layer);
// Chooses it unless one has been chosen before, and returns whether it did.
bool choose_first_layer(ThreadingLayer layer);
// For tests, which run all of them in one process: also when another is in use.
void exchange_layer(ThreadingLayer layer);

// How many threads run_together would use here and now, when asked for this many: 1 without any. A layer
// that is asked for several is in use from then on.
int available_threads(int threads);
// The largest number that this has returned so far.
int most_threads_used();

// Runs member(thread) on the calling thread as thread 0 and, as they come, on up to `threads - 1` others
// as threads 1, 2, ... Returns when the caller and all others that began have returned. `member` must not
// throw, and must itself divide the work: another thread may come late or never. While the caller waits
// for others, it calls `while_waiting` every 50 ms, which must not throw either.
//
// A member may call run_together itself, as a signal handler does that computes. A member or
// `while_waiting` may fork the process: in the child, where the other threads do not exist, run_together
// returns without waiting for them, and fork_count() has changed.
void run_together(int threads, const std::function<void(int thread)>& member,
                  const std::function<void()>& while_waiting);

}  // namespace regard
