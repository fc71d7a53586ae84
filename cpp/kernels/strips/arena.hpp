// Divides a workspace into arrays, each of which begins at a cache line.
#pragma once

#include <cstdint>

#include "../tile_shape.hpp"

namespace regard {
namespace {

// Without memory, it only counts bytes: a workspace is laid out twice, the first time to compute
// its size.
class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class E>
  E* take(std::int64_t count) {
    char* const start = memory_ ? memory_ + used_ : nullptr;
    used_ = round_up(used_ + count * static_cast<std::int64_t>(sizeof(E)), kLineBytes);
    return reinterpret_cast<E*>(start);
  }

  bool only_counts() const { return memory_ == nullptr; }
  std::int64_t used() const { return used_; }

 private:
  char* memory_;
  std::int64_t used_ = 0;
};

}  // namespace
}  // namespace regard
