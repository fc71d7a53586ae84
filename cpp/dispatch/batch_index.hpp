// The location of a batch entry in an operand.
#pragma once

#include "../problem/operand.hpp"

namespace regard {

// Advances `data` by `elements` of the operand's type; null stays null.
inline void* advance(void* data, const Operand& operand, std::int64_t elements) {
  return data ? static_cast<char*>(data) + elements * size_of(operand.element) : nullptr;
}

// The entry's index along each batch axis, last axis fastest.
class BatchIndex {
 public:
  BatchIndex(const BatchShape& shape, std::int64_t entry) : axes_(shape.axes) {
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      index_[axis] = entry % shape.sizes[axis];
      entry /= shape.sizes[axis];
    }
  }

  void* in(const Operand& operand) const {
    return advance(operand.data, operand, elements_to(operand.batch_strides));
  }

  // The entry's number, or a pointer to its first head's; the array must exist.
  std::int64_t in(const PerEntry& numbers) const { return numbers.data[elements_to(numbers.batch_strides)]; }
  const double* in(const PerHead& numbers) const { return numbers.data + elements_to(numbers.batch_strides); }

 private:
  std::int64_t elements_to(const std::int64_t* strides) const {
    if (!strides) return 0;
    std::int64_t elements = 0;
    for (int axis = 0; axis < axes_; ++axis) elements += index_[axis] * strides[axis];
    return elements;
  }

  int axes_;
  std::int64_t index_[kMaxBatchAxes];
};

}  // namespace regard
