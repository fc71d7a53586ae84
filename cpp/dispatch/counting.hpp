// For benchmarks: counts the work and the memory traffic of each task of a call, instead of
// computing it. The call is divided for the requested number of threads, even on machines that have
// fewer.
#pragma once

#include <cstdint>
#include <vector>

#include "threads/parallel_for.hpp"

namespace regard {

struct CountedTask {
  double multiplications;
  double bytes;  // of arrays and partial results that kernels read and write, whatever the cache
};

struct CountedLoop {
  int threads;
  Handout handout;
  std::vector<CountedTask> tasks;  // in the order in which they are handed out
};

// From here to end_counting, calls from one thread of the program run no float32 kernel of
// attention (forward and decode), backward or matmul. The contents of their results are undefined.
// No other call may be in progress.
void begin_counting();
// Returns the loops since begin_counting.
std::vector<CountedLoop> end_counting();

}  // namespace regard
