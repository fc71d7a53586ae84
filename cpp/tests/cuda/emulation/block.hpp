// Runs a kernel's own source on the CPU: with a fiber for each CUDA thread, one block at a time.
// Threads run in random order between the points at which they must meet. An error ends the program
// with a message. Errors are: a barrier or a warp instruction that not all threads reach, or that
// they reach at different places; reads of shared memory that has not been written, or beyond its
// end; and copies whose data is read before it has arrived. Under ThreadSanitizer each CUDA thread
// is a thread, ordered only by barriers.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "fiber.hpp"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emulation {

constexpr int kLanes = 32;

// A copy of up to 16 bytes into shared memory.
struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes;
};

struct Thread {
  Fiber fiber;
  int number = 0;
  dim3 index;
  bool is_done = false;
  // The point at which it waits for others, and its input and output there.
  const char* what = "";
  const char* file = "";
  int line = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<Copy> copies;               // since the last commit
  std::vector<std::vector<Copy>> groups;  // pending groups
};

struct Statistics {
  std::int64_t conflicts = 0;  // accesses to shared memory that wait for another access to the same bank
  std::int64_t accesses = 0;
  std::int64_t products = 0;
};
inline Statistics statistics;

struct Block {
  dim3 index;
  std::vector<Thread> threads;
  std::vector<int> runnable;
  int left = 0;               // threads that are not done
  int at_barrier = 0;
  std::vector<int> at_warp;  // for each warp, lanes that wait for the others
  Fiber main;
  std::mt19937 random;
  std::function<void()> kernel;

  std::unique_ptr<unsigned char[]> memory;
  unsigned char* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::vector<bool> is_written;  // for each 2 bytes

  char begin = 0, end = 0, barriers[2] = {}, turn = 0;  // points that order threads
};

inline Block* block = nullptr;
inline Thread* running = nullptr;

EMULATION_UNWATCHED inline Thread& self() { return *running; }
EMULATION_UNWATCHED inline Block& this_block() { return *block; }

[[noreturn]] inline void fail(const char* message, const char* what, const char* file, int line) {
  std::fprintf(stderr, "emulation: %s: %s at %s:%d (block %u, thread %d)\n", message, what, file, line,
               block->index.x, running->number);
  std::_Exit(3);
}

inline Fiber& next_fiber() {
  Block& b = *block;
  if (b.runnable.empty() && b.left > 0) {
    for (const Thread& thread : b.threads)
      if (!thread.is_done) {
        running = const_cast<Thread*>(&thread);
        fail("deadlock, threads wait for others that have ended or are elsewhere", thread.what, thread.file, thread.line);
      }
  }
  if (b.runnable.empty()) return b.main;
  const std::size_t pick = b.random() % b.runnable.size();
  std::swap(b.runnable[pick], b.runnable.back());
  running = &b.threads[static_cast<std::size_t>(b.runnable.back())];
  b.runnable.pop_back();
  return running->fiber;
}

inline void run_others() {
  Thread& me = self();
  Fiber& other = next_fiber();
  if (&other != &me.fiber) switch_fibers(me.fiber, other, false);
}

inline void entry() {
  begin_fiber(block->main);
  acquire(&block->begin);
  block->kernel();
  release(&block->end);
  Thread& me = self();
  Fiber* other;
  {
    const Unwatched engine;
    const auto is_under_way = [](const std::vector<Copy>& group) { return !group.empty(); };
    if (!me.copies.empty() || std::any_of(me.groups.begin(), me.groups.end(), is_under_way))
      fail("a thread ends while copies are pending", "cp.async", "", 0);
    me.is_done = true;
    --block->left;
    other = &next_fiber();
  }
  switch_fibers(me.fiber, *other, true);
  std::abort();
}

// A warp instruction: `compute` receives the inputs of all lanes, and the last lane to arrive
// executes it.
template <class Input, class Output, class Compute>
Output of_warp(const char* what, const char* file, int line, const Input& input, const Compute& compute) {
  const Unwatched engine;
  Output output{};
  Block& b = *block;
  Thread& me = self();
  const int warp = me.number / kLanes;
  me.what = what;
  me.file = file;
  me.line = line;
  me.input = &input;
  me.output = &output;
  if (++b.at_warp[static_cast<std::size_t>(warp)] == kLanes) {
    const Input* inputs[kLanes];
    Output* outputs[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const Thread& other = b.threads[static_cast<std::size_t>(warp * kLanes + lane)];
      if (other.line != line || other.file != file)
        fail("lanes of a warp meet in different instructions", what, file, line);
      inputs[lane] = static_cast<const Input*>(other.input);
      outputs[lane] = static_cast<Output*>(other.output);
    }
    compute(inputs, outputs);
    b.at_warp[static_cast<std::size_t>(warp)] = 0;
    for (int lane = 0; lane < kLanes; ++lane) b.runnable.push_back(warp * kLanes + lane);
  }
  run_others();
  return output;
}

// A barrier of the block. Returns whether the condition holds in any thread.
inline bool of_block(const char* what, const char* file, int line, bool condition) {
  Block& b = this_block();
  void* point;
  bool result = false;
  {
    const Unwatched engine;
    point = &b.barriers[static_cast<int>(b.turn)];
  }
  release(point);
  {
    const Unwatched engine;
    Thread& me = self();
    me.what = what;
    me.file = file;
    me.line = line;
    me.input = &condition;
    me.output = &result;
    if (++b.at_barrier == static_cast<int>(b.threads.size())) {
      bool any = false;
      for (const Thread& thread : b.threads) {
        if (thread.line != line || thread.file != file)
          fail("threads of a block meet at different barriers", what, file, line);
        any = any || *static_cast<const bool*>(thread.input);
      }
      for (Thread& thread : b.threads) {
        *static_cast<bool*>(thread.output) = any;
        b.runnable.push_back(thread.number);
      }
      b.at_barrier = 0;
      b.turn = static_cast<char>(1 - b.turn);
    }
    run_others();
  }
  acquire(point);
  return result;
}

// Checks an access to shared memory, and returns its offset.
inline std::size_t offset_in_shared(const void* address, std::size_t bytes, const char* what, const char* file,
                                    int line) {
  const Block& b = *block;
  const auto* at = static_cast<const unsigned char*>(address);
  if (at < b.shared || at + bytes > b.shared + b.shared_bytes)
    fail("shared memory out of bounds", what, file, line);
  const auto offset = static_cast<std::size_t>(at - b.shared);
  if (offset % bytes != 0) fail("misaligned shared memory", what, file, line);
  return offset;
}
inline void mark(std::size_t offset, std::size_t bytes, bool is_written) {
  for (std::size_t i = offset / 2; i < (offset + bytes) / 2; ++i) block->is_written[i] = is_written;
}
inline void check_read(const void* address, std::size_t bytes, const char* what, const char* file, int line) {
  const std::size_t offset = offset_in_shared(address, bytes, what, file, line);
  for (std::size_t i = offset / 2; i < (offset + bytes) / 2; ++i)
    if (!block->is_written[i]) fail("shared memory is read before data has arrived", what, file, line);
}

// Counts bank conflicts of `lanes` lanes that access `bytes` bytes each at once: a bank serves one
// of its words at a time.
template <class Address>
void count_conflicts(int lanes, int bytes, const Address& address) {
  std::vector<std::uintptr_t> words[32];
  for (int lane = 0; lane < lanes; ++lane)
    for (int word = 0; word < bytes / 4; ++word) {
      const auto first = static_cast<std::uintptr_t>(address(lane) - block->shared) / 4;
      const auto at = first + static_cast<std::uintptr_t>(word);
      auto& bank = words[at % 32];
      if (std::find(bank.begin(), bank.end(), at) == bank.end()) bank.push_back(at);
    }
  std::size_t most = 1;
  for (const auto& bank : words) most = std::max(most, bank.size());
  statistics.conflicts += static_cast<std::int64_t>(most) - 1;
  ++statistics.accesses;
}

// Runs a grid of blocks of `threads` threads, in random order.
inline void run(const std::function<void()>& kernel, unsigned blocks, int threads, std::size_t shared_bytes,
                unsigned seed) {
  Block b;
  b.random.seed(seed);
  b.kernel = kernel;
  b.threads.resize(static_cast<std::size_t>(threads));
  b.at_warp.assign(static_cast<std::size_t>(threads / kLanes), 0);
  b.shared_bytes = shared_bytes;
  Block* const outer = block;
  block = &b;
#if defined(__SANITIZE_THREAD__)
  b.main.race_detector = __tsan_get_current_fiber();
#endif
  std::vector<unsigned> order(blocks);
  for (unsigned i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), b.random);
  for (const unsigned index : order) {
    b.index = {index, 1, 1};
    b.left = threads;
    // The allocation ends with shared memory, so that AddressSanitizer detects accesses beyond it.
    const std::size_t aligned = (shared_bytes + 127) / 128 * 128;
    b.memory.reset(new unsigned char[aligned + 128]);
    b.shared = b.memory.get() + (128 - reinterpret_cast<std::uintptr_t>(b.memory.get()) % 128) % 128;
    std::memset(b.shared, 0xFF, shared_bytes);  // NaN in every type
    b.is_written.assign(shared_bytes / 2, false);
    release(&b.begin);
    for (int i = 0; i < threads; ++i) {
      Thread& thread = b.threads[static_cast<std::size_t>(i)];
      thread.number = i;
      thread.index = {static_cast<unsigned>(i), 0, 0};
      thread.is_done = false;
      thread.groups.clear();
      thread.fiber.prepare(entry);
      b.runnable.push_back(i);
    }
    switch_fibers(b.main, next_fiber(), false);
    acquire(&b.end);
  }
  block = outer;
}

}  // namespace emulation
