// Thrown if memory cannot be allocated; it states the amount and the purpose.
#pragma once

#include <cstdint>
#include <cstdio>
#include <new>

namespace regard {

// Becomes Python's MemoryError. The text is stored in the exception itself, since nothing can be
// allocated now.
class NoMemory : public std::bad_alloc {
 public:
  NoMemory(std::int64_t bytes, const char* what) {
    std::snprintf(text_, sizeof text_, "cannot allocate %lld bytes of %s",
                  static_cast<long long>(bytes), what);
  }
  const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

}  // namespace regard
