// Arrays that end where readable memory ends: one element too far is a crash, under any compiler.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t count) : count_(count) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t used = static_cast<std::size_t>(count) * sizeof(T);
    const std::size_t body = (used + page - 1) / page * page;
    bytes_ = body + 2 * page;
    base_ = static_cast<char*>(
        mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED ||
        (body > 0 && mprotect(base_ + page, body, PROT_READ | PROT_WRITE) != 0)) {
      std::perror("guarded memory");
      std::abort();
    }
    data_ = reinterpret_cast<T*>(base_ + page + body - used);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, bytes_); }

  void fill_normal(unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < count_; ++i) data_[i] = static_cast<T>(normal(generator));
  }
  void fill_bits(unsigned seed) {
    std::mt19937 generator(seed);
    for (std::int64_t i = 0; i < count_; ++i) data_[i] = static_cast<T>(generator() % 2);
  }

  T* data() const { return data_; }
  std::int64_t count() const { return count_; }
  T& operator[](std::int64_t i) const { return data_[i]; }

 private:
  std::int64_t count_;
  std::size_t bytes_;
  char* base_;
  T* data_;
};
