// Where a batch entry lies in an operand.
#pragma once

#include "../problem/operand.hpp"

namespace regard {

constexpr std::int64_t size_of(Element element) {
  switch (element) {
    case Element::boolean:
    case Element::int8:
      return 1;
    case Element::float16:
    case Element::bfloat16:
      return 2;
    case Element::int32:
    case Element::float32:
      return 4;
    case Element::float64:
    case Element::int64:
      return 8;
  }
  return 0;
}

// `elements` of the operand's type on from `data`; null stays null.
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
    std::int64_t elements = 0;
    for (int axis = 0; axis < axes_; ++axis) elements += index_[axis] * operand.batch_strides[axis];
    return advance(operand.data, operand, elements);
  }

 private:
  int axes_;
  std::int64_t index_[kMaxBatchAxes];
};

}  // namespace regard
