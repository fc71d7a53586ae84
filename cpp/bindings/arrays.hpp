// NumPy arrays as operands: types, shapes, strides, broadcasting and overlap, with the errors that
// these can give. Nothing here computes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "../problem.hpp"

namespace regard {

namespace py = pybind11;

using Shape = std::vector<py::ssize_t>;

// A float32 or float64 array, or a mask, that the kernels can read where it lies.
struct ArrayView {
  const char* name;  // the argument's, for messages
  py::array array;
  Shape shape;
  Shape strides;  // in elements

  int axes() const { return static_cast<int>(shape.size()); }
  // From the end: size(1) is the last axis.
  py::ssize_t size(int from_end) const { return shape[shape.size() - static_cast<std::size_t>(from_end)]; }
  py::ssize_t stride(int from_end) const {
    return strides[strides.size() - static_cast<std::size_t>(from_end)];
  }
};

std::string to_text(const Shape& shape);

// True for a plain ndarray whose memory the kernels can read: native byte order, aligned, strides a
// whole number of elements, float32 or float64 (or bool).
bool is_readable_float(py::handle object);
bool is_readable_mask(py::handle object);

// Throw TypeError unless is_readable_...; the Python layer has converted what can be converted.
ArrayView float_view(const char* name, py::handle object);
ArrayView mask_view(py::handle object);

Scalar scalar_of(const ArrayView& view);
MaskKind mask_kind_of(const ArrayView& view);

// The common shape of batch axes. Throws ValueError naming the arguments where they do not broadcast.
void broadcast_into(Shape& common, const Shape& shape, const std::vector<const ArrayView*>& all,
                    const char* what);

// True where an array of shape `own` broadcasts to exactly `full`.
bool broadcasts_to(const Shape& own, const Shape& full);

// Strides of `view`'s leading axes (all but the last `inner`) along `batch`, 0 where broadcast.
void set_batch_strides(Operand& operand, const ArrayView& view, int inner,
                       const BatchShape& batch);

BatchShape batch_of(const Shape& shape);

py::array new_array(Scalar scalar, const Shape& shape);

// Where a call's main result goes: a new array, or the caller's `out`.
struct Result {
  // Checks `out` (None: a new array): an ndarray of this type and shape, writeable, with an element of
  // its own for every result. Throws TypeError or ValueError.
  Result(py::handle out, Scalar scalar, const Shape& shape);

  // Throws ValueError where the memory of `out` and of `input` overlaps; an input that is `out`
  // itself, element for element, is let through if `may_be_same`.
  void forbid_overlap(const ArrayView& input, bool may_be_same) const;

  // What the caller gets, after the kernels have filled `view`.
  py::object deliver() const;

  ArrayView view;

 private:
  py::object given_;  // the caller's object, None where there is none
  ArrayView out_;     // its memory
  bool is_direct_;    // the kernels can write it as it lies; else `view` is an array of our own
};

}  // namespace regard
