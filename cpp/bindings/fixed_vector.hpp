// A vector with a limited number of elements, stored in place. A call creates a dozen shapes, and
// an allocation for each would take longer than a small problem.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>

namespace regard {

template <class T, std::size_t kMost>
class FixedVector {
 public:
  FixedVector() = default;
  FixedVector(std::initializer_list<T> elements) : FixedVector(elements.begin(), elements.end()) {}
  FixedVector(const T* first, const T* last) { assign(first, last); }
  FixedVector(const FixedVector& other) : FixedVector(other.begin(), other.end()) {}
  FixedVector& operator=(const FixedVector& other) {
    assign(other.begin(), other.end());
    return *this;
  }

  void assign(const T* first, const T* last) {
    size_ = checked(static_cast<std::size_t>(last - first));
    std::copy(first, last, elements_);
  }
  void push_back(T element) { insert(end(), element); }
  void pop_back() { --size_; }
  void insert(const T* position, T element) { insert(position, 1, element); }
  void insert(const T* position, std::size_t count, T element) {
    T* const at = elements_ + (position - elements_);
    const std::size_t size = checked(size_ + count);
    std::copy_backward(at, elements_ + size_, elements_ + size);
    std::fill(at, at + count, element);
    size_ = size;
  }
  void erase(const T* position) {
    std::copy(position + 1, end(), elements_ + (position - elements_));
    --size_;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* begin() const { return elements_; }
  const T* end() const { return elements_ + size_; }
  T& operator[](std::size_t index) { return elements_[index]; }
  const T& operator[](std::size_t index) const { return elements_[index]; }
  bool operator==(const FixedVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  bool operator!=(const FixedVector& other) const { return !(*this == other); }

 private:
  static std::size_t checked(std::size_t size) {
    if (size > kMost) throw std::length_error("an array has more axes than NumPy allows");
    return size;
  }

  std::size_t size_ = 0;
  T elements_[kMost];  // the first size_ of them have values
};

}  // namespace regard
