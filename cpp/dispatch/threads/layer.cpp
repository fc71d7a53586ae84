#include "layer.hpp"

#include <atomic>

#include "../../platform/forks.hpp"
#include "pool.hpp"
#include "team.hpp"

namespace regard {
namespace {

// A layer, and kInUse once it has run more than one thread.
constexpr int kInUse = 8;
constexpr int kNotChosen = -1;
std::atomic<int> state{kNotChosen};
std::atomic<int> most_threads{1};

bool is_in_use(int value) { return value != kNotChosen && (value & kInUse) != 0; }

ThreadingLayer layer_in(int value) {
  return value == kNotChosen ? ThreadingLayer::pool : static_cast<ThreadingLayer>(value & ~kInUse);
}

bool is_other_in_use(int value, ThreadingLayer layer) {
  return is_in_use(value) && layer_in(value) != layer;
}

ThreadingLayer used_layer() {
  int seen = state.load(std::memory_order_acquire);
  while (!is_in_use(seen)) {
    const ThreadingLayer layer = layer_in(seen);
    // This layer leaves no threads that would hinder another layer.
    if (layer == ThreadingLayer::serial) return layer;
    const int used = static_cast<int>(layer) | kInUse;
    if (state.compare_exchange_weak(seen, used, std::memory_order_acq_rel)) return layer;
  }
  return layer_in(seen);
}

}  // namespace

bool is_layer_chosen() { return state.load(std::memory_order_acquire) != kNotChosen; }

ThreadingLayer threading_layer() { return layer_in(state.load(std::memory_order_acquire)); }

bool may_choose_layer(ThreadingLayer layer) {
  return !is_other_in_use(state.load(std::memory_order_acquire), layer);
}

bool choose_layer(ThreadingLayer layer) {
  int seen = state.load(std::memory_order_acquire);
  int chosen = 0;
  do {
    if (is_other_in_use(seen, layer)) return false;
    chosen = is_in_use(seen) ? seen : static_cast<int>(layer);
  } while (!state.compare_exchange_weak(seen, chosen, std::memory_order_acq_rel));
  return true;
}

bool choose_first_layer(ThreadingLayer layer) {
  int none = kNotChosen;
  return state.compare_exchange_strong(none, static_cast<int>(layer), std::memory_order_acq_rel);
}

void exchange_layer(ThreadingLayer layer) {
  state.store(static_cast<int>(layer), std::memory_order_release);
}

int available_threads(int threads) {
  if (threads <= 1) return threads;
  watch_forks();
  switch (used_layer()) {
    case ThreadingLayer::pool:
      break;
    case ThreadingLayer::openmp:
      threads = available_team(threads);
      break;
    case ThreadingLayer::serial:
      threads = 1;
  }
  int most = most_threads.load(std::memory_order_relaxed);
  while (most < threads && !most_threads.compare_exchange_weak(most, threads, std::memory_order_relaxed)) {
  }
  return threads;
}

int most_threads_used() { return most_threads.load(std::memory_order_relaxed); }

void run_together(int threads, const std::function<void(int thread)>& member,
                  const std::function<void()>& while_waiting) {
  if (threads <= 1)
    member(0);
  else if (threading_layer() == ThreadingLayer::openmp)
    run_in_team(threads, member, while_waiting);
  else
    run_in_pool(threads, member, while_waiting);
}

}  // namespace regard
