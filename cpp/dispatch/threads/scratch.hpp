// Memory that the threads of a call work in.
#pragma once

#include <cstdint>

#include "parallel_for.hpp"

namespace regard {

// `threads` workspaces of `bytes` each, aligned to 64. Throws NoMemory. What they hold at the beginning may be
// anything: a few pieces of some megabytes are kept for the next calls, which then need no pages from the system.
class Scratch {
 public:
  Scratch(int threads, std::int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* of(const Worker& worker) const { return at(worker.thread()); }
  void* at(std::int64_t index) const { return memory_ + index * stride_; }

 private:
  std::int64_t stride_;
  char* memory_;
};

}  // namespace regard
