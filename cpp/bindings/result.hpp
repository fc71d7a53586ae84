// New arrays for results, and `out`.
#pragma once

#include "arrays.hpp"

namespace regard {

// A new array. Throws MemoryError, with its size, where there is no memory for it.
ArrayView new_array(const char* name, const ResultType& type, const Shape& shape);

// The same of zeros. A large one takes no time: the system clears a page when it is first touched, by the thread that
// computes there and looks at the stop signal.
ArrayView new_zeros(const char* name, const ResultType& type, const Shape& shape);

// Where a call's main result goes: a new array, or the caller's `out`.
class Result {
 public:
  // Checks `out` (None: a new array is made): an ndarray of this type and shape, writeable, with an element
  // of its own for every result. Throws TypeError or ValueError. The axes of a new array lie in memory in the
  // order of those of `like`, which has its shape, or else in their own order. Messages call it `name`.
  Result(py::handle out, const ResultType& type, const Shape& shape, const ArrayView* like = nullptr,
         const char* name = "out");

  // Throws ValueError where the memory of `out` and of `input` overlaps; an input that is `out`
  // itself, element for element, is let through if `may_be_same`.
  void forbid_overlap(const ArrayView& input, bool may_be_same) const;
  // The same for two gradients of a call.
  void forbid_overlap(const Result& gradient) const;

  // What the caller gets, after the kernels have filled `view`.
  py::object deliver() const;

  ArrayView view;

 private:
  py::object given_;  // the caller's object, None where there is none
  ArrayView out_;     // its memory
  bool is_direct_;    // the kernels can write it as it lies; otherwise `view` is an array of our own
};

}  // namespace regard
