// Arrays that end where readable memory ends: an access one element beyond crashes, under any
// compiler.
#pragma once

#include <cstdint>
#include <random>

#include "guarded_pages.hpp"

template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t count)
      : count_(count),
        pages_(allocate_guarded_pages(static_cast<std::size_t>(count) * sizeof(T))),
        data_(reinterpret_cast<T*>(pages_.end - static_cast<std::size_t>(count) * sizeof(T))) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { free_guarded_pages(pages_); }

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
  GuardedPages pages_;
  T* data_;
};
