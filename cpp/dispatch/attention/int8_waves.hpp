// The tasks and keys of an int8 call that share memory at a time. The keys of some heads are
// quantized, then the tasks of these heads run, and so on. This limits the extra memory for any
// number of heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tasks.hpp"

namespace regard {

// Determines which tasks run together, and which keys they need.
class Int8Waves {
 public:
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

  const std::vector<Wave>& waves() const { return waves_; }
  const Keys& keys(std::size_t index) const { return keys_[index]; }
  const Keys& keys_of_task(std::int64_t task) const {
    return keys_[keys_of_task_[static_cast<std::size_t>(task)]];
  }
  std::int64_t bytes() const { return bytes_; }  // of the largest wave

 private:
  std::vector<Wave> waves_;
  std::vector<Keys> keys_;
  std::vector<std::size_t> keys_of_task_;
  std::int64_t bytes_ = 0;
};

}  // namespace regard
