// NumPy arrays as operands: types, shapes, strides, broadcasting and overlap, with the errors that
// these can give. Nothing here computes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "../problem/operand.hpp"

namespace regard {

namespace py = pybind11;

constexpr int kFirstUserType = 256;  // NPY_USERDEF: types that other packages register

using Shape = std::vector<py::ssize_t>;

// A float32 or float64 array, or a mask, that the kernels can read where it lies.
struct ArrayView {
  const char* name;  // the argument's, for messages
  Element element;
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

// np.asarray of a number or a nested list, with errors that name the argument.
py::array as_array(const char* name, py::handle object);

// The same of integers, of any integer type: an empty list is one of no integers. Throws TypeError,
// whose message says what is `wanted`, or ValueError where Python's integers are beyond 64 bits.
py::array integers_of(const char* name, py::handle object, const char* wanted);

// Element types that an argument may have.
enum class Accepts {
  floats,    // float32, float64
  storage,   // and float16, bfloat16
  cache,     // and int8
  mask,      // bool, float32, float64
};

// True for a plain ndarray whose memory the kernels can read: one of these types, native byte order,
// aligned, strides a whole number of elements.
bool is_native(py::handle object, Accepts accepts);

// Throws TypeError unless readable; the Python layer has converted what can be converted.
ArrayView view_of(const char* name, py::handle object, Accepts accepts);

// What arrays of this type are computed in.
Scalar scalar_of(Element element);

// NumPy's result type of some arrays: their common type, float32 for float16 with bfloat16. `dtype` is
// its NumPy object; that of bfloat16 comes from the array that has it.
struct ResultType {
  Element element;
  py::dtype dtype;
};
ResultType result_type_of(const std::vector<const ArrayView*>& arrays);
ResultType result_type_of(Scalar scalar);

// Widens `common` so that `shape` broadcasts to it. False where the two have no common shape.
bool broadcast_shape(Shape& common, const Shape& shape);

// The common shape of batch axes. Throws ValueError naming the arguments where they do not broadcast.
void broadcast_into(Shape& common, const Shape& shape, const std::vector<const ArrayView*>& all,
                    const char* what);

// True where an array of shape `own` broadcasts to exactly `full`.
bool broadcasts_to(const Shape& own, const Shape& full);

// Strides of `view`'s leading axes (all but the last `inner`) along `batch`, 0 where broadcast.
void set_batch_strides(Operand& operand, const ArrayView& view, int inner,
                       const BatchShape& batch);

// Rows lie along all of a view's axes but the last `inner`. In place: an Operand is large to copy.
void set_rows(Operand& operand, const ArrayView& view, int inner, const BatchShape& rows);

BatchShape batch_of(const Shape& shape);

// A new array of our own.
ArrayView new_array(const char* name, const ResultType& type, const Shape& shape);

// Where a call's main result goes: a new array, or the caller's `out`.
struct Result {
  // Checks `out` (None: a new array): an ndarray of this type and shape, writeable, with an element of
  // its own for every result. Throws TypeError or ValueError.
  Result(py::handle out, const ResultType& type, const Shape& shape);

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
