// Memory that the threads of a call work in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel_for.hpp"

namespace regard {

// `count` workspaces of `bytes` each, aligned to 64. Throws NoMemory. What they hold at the beginning may be
// anything: memory is kept for the next calls, which then need no pages from the system.
class Scratch {
 public:
  Scratch(std::int64_t count, std::int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* of(const Worker& worker) const { return at(worker.thread()); }
  void* at(std::int64_t index) const { return memory_ + index * stride_; }

 private:
  std::int64_t stride_;
  char* memory_;
};

// For tests: what the calls of the process have used since the last question.
struct ScratchUse {
  std::int64_t allocations;  // pieces that came from the system
  std::size_t most_bytes;    // in use or kept, at once
  std::size_t bytes;         // at the moment
  std::size_t kept;          // at the moment
  std::size_t most_kept;     // the limit on it
};
ScratchUse scratch_use();
// Gives back to the system what is kept.
void release_scratch();

}  // namespace regard
