// Sparse masks: Python's regard.masks.SparseMask as plain data.
#pragma once

#include "arrays.hpp"

namespace regard {

// A view of a sparse mask's arrays, which it keeps alive.
class SparseMaskView {
 public:
  // Takes the object's arrays if it is a sparse mask.
  bool take(py::handle object);

  bool is_given() const { return static_cast<bool>(starts.array); }
  const Shape& shape() const { return shape_; }
  // The plain data, except for the strides of the batch axes and heads.
  const SparseMask& mask() const { return mask_; }

  ArrayView starts;  // of the rows: (batch..., heads, rows + 1)
  ArrayView spans, bits;

 private:
  Shape shape_;
  SparseMask mask_{};
};

}  // namespace regard
