// New arrays for results, and `out`.
#pragma once

#include "arrays.hpp"

namespace regard {

// A new array. Throws MemoryError, with its size, if it cannot be allocated.
ArrayView new_array(const char* name, const ResultType& type, const Shape& shape);

// The same with zeros. A large array takes no time here: the system clears a page when it is first
// touched, by the thread that computes there and checks the stop signal.
ArrayView new_zeros(const char* name, const ResultType& type, const Shape& shape);

// The destination of a call's main result: a new array, or the caller's `out`.
class Result {
 public:
  // Checks `out` (None: a new array is made): it must be a writeable ndarray of this type and
  // shape, with a separate element for every result. Throws TypeError or ValueError. The axes of a
  // new array have the memory order of `like`, which has its shape, or C order without it. Messages
  // use `name`.
  Result(py::handle out, const ResultType& type, const Shape& shape, const ArrayView* like = nullptr,
         const char* name = "out");

  // Throws ValueError if the memory of `out` and `input` overlaps. An input that is `out` itself,
  // element for element, is accepted if `may_be_same`.
  void forbid_overlap(const ArrayView& input, bool may_be_same) const;
  // The same for two results of a call.
  void forbid_overlap(const Result& other) const;

  // The caller's result, after the kernels have filled `view`.
  py::object deliver() const;

  ArrayView view;

 private:
  py::object given_;  // the caller's object, or None
  ArrayView out_;     // its memory
  bool is_direct_;    // the kernels can write to it in place; otherwise `view` is a private array
};

}  // namespace regard
