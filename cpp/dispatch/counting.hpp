// For benchmarks: counts what each task of a call computes and reads, instead of computing it. The call is divided as
// for as many threads as it asks for, on machines that have fewer.
#pragma once

#include <cstdint>
#include <vector>

#include "threads/parallel_for.hpp"

namespace regard {

struct CountedTask {
  double multiplications;
  double bytes;  // of arrays and partial results, read and written by kernels, from whichever cache
};

struct CountedLoop {
  int threads;
  Handout handout;
  std::vector<CountedTask> tasks;  // in the order in which they are handed out
};

// From here to end_counting, calls of one thread of the program run no kernel of attention (forward and decode),
// backward or matmul on float32: what their results hold is undefined. No other call may be under way.
void begin_counting();
// The loops since then.
std::vector<CountedLoop> end_counting();

}  // namespace regard
