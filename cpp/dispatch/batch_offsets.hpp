// Where a batch entry lies in an operand.
#pragma once

#include "../problem.hpp"

namespace regard {

// The entry's index along each batch axis, last axis fastest.
class BatchIndex {
 public:
  BatchIndex(const BatchShape& shape, std::int64_t entry) : axes_(shape.axes) {
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      index_[axis] = entry % shape.sizes[axis];
      entry /= shape.sizes[axis];
    }
  }

  template <class T>
  T* in(const Operand& operand) const {
    if (!operand.data) return nullptr;
    T* at = static_cast<T*>(operand.data);
    for (int axis = 0; axis < axes_; ++axis) at += index_[axis] * operand.batch_strides[axis];
    return at;
  }

 private:
  int axes_;
  std::int64_t index_[kMaxBatchAxes];
};

// `elements` from `data`, in elements of the type that `scalar` names.
inline void* advance(void* data, Scalar scalar, std::int64_t elements) {
  if (!data) return nullptr;
  if (scalar == Scalar::float32) return static_cast<float*>(data) + elements;
  return static_cast<double*>(data) + elements;
}

inline void* locate(const BatchIndex& index, const Operand& operand, Scalar scalar) {
  if (scalar == Scalar::float32) return index.in<float>(operand);
  return index.in<double>(operand);
}

inline void* locate_mask(const BatchIndex& index, const Operand& operand, MaskKind kind) {
  switch (kind) {
    case MaskKind::none:
      return nullptr;
    case MaskKind::boolean:
      return index.in<unsigned char>(operand);
    case MaskKind::float32:
      return index.in<float>(operand);
    case MaskKind::float64:
      return index.in<double>(operand);
  }
  return nullptr;
}

inline void* advance_mask(void* data, MaskKind kind, std::int64_t elements) {
  switch (kind) {
    case MaskKind::none:
      return nullptr;
    case MaskKind::boolean:
      return static_cast<unsigned char*>(data) + elements;
    case MaskKind::float32:
      return static_cast<float*>(data) + elements;
    case MaskKind::float64:
      return static_cast<double*>(data) + elements;
  }
  return nullptr;
}

}  // namespace regard
