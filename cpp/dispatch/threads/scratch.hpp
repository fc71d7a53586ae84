// Working memory for the threads of a call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel_for.hpp"

namespace regard {

// `count` workspaces of `bytes` each, aligned to 64 bytes. Throws NoMemory. The initial contents
// are arbitrary: memory is kept for later calls, which then need no new pages from the system.
class Scratch {
 public:
  Scratch(std::int64_t count, std::int64_t bytes, const char* what = "workspace for each thread");
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* of(const Worker& worker) const { return at(worker.thread()); }
  void* at(std::int64_t index) const { return memory_ + index * stride_; }

 private:
  std::int64_t stride_;
  char* memory_;
};

// For tests: the memory that calls have used since the last query.
struct ScratchUse {
  std::int64_t allocations;  // pieces that came from the system
  std::size_t most_bytes;    // in use or kept, at once
  std::size_t bytes;         // currently
  std::size_t kept;          // currently
  std::size_t most_kept;     // the limit on it
};
ScratchUse scratch_use();
// Returns the kept memory to the system.
void release_scratch();

}  // namespace regard
