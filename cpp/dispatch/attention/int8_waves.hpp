// The tasks and keys of an int8 call that share memory at a time. The keys of some heads are
// quantized, then the tasks of these heads run, and so on. This limits the extra memory for any
// number of heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tasks.hpp"

namespace regard {

// Which tasks run together, and which keys they need.
struct Int8Waves {
  // Throws NoMemory if sizes in bytes might not fit in 64 bits.
  Int8Waves(const AttentionProblem& problem, const Kernels& kernels, const AttentionTasks& tasks,
            int threads);

  struct Wave {
    std::int64_t first_task;
    std::int64_t end_task;
    std::size_t first_keys;
    std::size_t end_keys;
  };
  struct Keys {
    std::int64_t task;    // one of the tasks that read them
    std::int64_t offset;  // in the wave's memory
  };

  std::vector<Wave> waves;
  std::vector<Keys> keys;
  std::vector<std::size_t> keys_of_task;  // indices of keys
  std::int64_t bytes = 0;                 // of the largest wave
};

}  // namespace regard
