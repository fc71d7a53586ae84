// NumPy arrays as the kernels see them: types, shapes, strides and broadcasting, with their errors.
// Nothing here computes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "../problem/operand.hpp"
#include "fixed_vector.hpp"

namespace regard {

namespace py = pybind11;

constexpr int kFirstUserType = 256;  // NPY_USERDEF: types that other packages register

// Two axes more than an array can have, since vectors receive the axes of matrices.
using Shape = FixedVector<py::ssize_t, kMaxBatchAxes + 2>;

// An axis of a result whose length a caller chose. If an index has 32 bits, NumPy refuses the longest axis.
inline py::ssize_t as_axis(std::int64_t length) {
  return static_cast<py::ssize_t>(std::min<std::int64_t>(length, PY_SSIZE_T_MAX));
}

// An array that the kernels can read in place; `data` is null if there is none.
struct ArrayView {
  const char* name = "";  // the argument's name, for messages
  Element element{};
  py::object array;  // kept alive
  void* data = nullptr;
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
// "an array of float32", or the name of another type.
std::string describe(py::handle object);
Shape shape_of(const py::array& array);

// np.asarray of a number or a nested list, with errors that name the argument.
py::array as_array(const char* name, py::handle object);

// Whether this is a masked array. Imports nothing: an import in a call could wait in a forked child
// for a thread of its parent.
bool is_masked_array(py::handle object);

constexpr unsigned bit_of(Element element) { return 1u << static_cast<int>(element); }

// Element types that an argument may have.
enum class Accepts : unsigned {
  bool_mask = bit_of(Element::boolean),
  floats = bit_of(Element::float32) | bit_of(Element::float64),
  storage = floats | bit_of(Element::float16) | bit_of(Element::bfloat16),
  cache = storage | bit_of(Element::int8) | bit_of(Element::float8) | bit_of(Element::q4_1),
  mask = storage | bool_mask,
};

// Whether this is a plain ndarray whose memory the kernels can read: it has an accepted type,
// native byte order, aligned data, and strides of a whole number of elements.
bool is_native(py::handle object, Accepts accepts);

// Whether this is exactly an ndarray: a subclass may give its elements another meaning.
bool is_plain_array(py::handle object);

// A view of an array as this element type; alignment and byte order are not checked.
ArrayView view_as(const char* name, const py::array& array, Element element);

// A private copy of an array, which no other thread can change while the kernels read it. Axes of
// stride 0, as np.broadcast_to makes them, keep that stride: only distinct elements are copied.
ArrayView copy_as(const char* name, const py::array& array, const py::dtype& type, Element element);

// The same for integers of any integer type, as 64-bit integers; an empty list is accepted. Throws
// TypeError with a message that states what is `wanted`, or ValueError if a number is beyond 64 bits.
ArrayView copied_integers(const char* name, py::handle object, const char* wanted);

// The same for real numbers of any type, as float32 or float64.
ArrayView copied_numbers(const char* name, py::handle object, Element element);

// The elements of such a copy, each once.
template <class Number>
struct Distinct {
  explicit Distinct(const ArrayView& copy)
      : first(static_cast<const Number*>(copy.data)),
        last(first + py::reinterpret_borrow<py::array>(copy.array).size()) {}
  const Number* begin() const { return first; }
  const Number* end() const { return last; }
  const Number* first;
  const Number* last;
};

// Takes a view if the array is native.
bool take_view(ArrayView& view, const char* name, py::handle object, Accepts accepts);

// Throws TypeError unless the array is native.
ArrayView view_of(const char* name, py::handle object, Accepts accepts);

// The type in which arrays of this type are computed.
Scalar scalar_of(Element element);

// NumPy's result type of some arrays: their common type, float32 for float16 with bfloat16. `dtype`
// is its NumPy object; the bfloat16 object comes from the array of that type.
struct ResultType {
  Element element{};
  py::object dtype;  // null before there is an array

  void widen(const ArrayView& view);
};
using Views = std::initializer_list<const ArrayView*>;
ResultType result_type_of(Views arrays);
ResultType result_type_of(const std::vector<ArrayView>& arrays);
ResultType result_type_of(Scalar scalar);

// Widens `common` so that `shape` broadcasts to it. False if the two have no common shape.
bool broadcast_shape(Shape& common, const Shape& shape);

// The common shape of the axes before the last `inner` axes (for matrices, all but the last two).
// Throws a ValueError that names the arguments if they do not broadcast.
Shape broadcast_outer(Views arrays, int inner, const char* what);

// Whether an array of shape `own` broadcasts to exactly `full`.
bool broadcasts_to(const Shape& own, const Shape& full);

// The integers that a problem's pointers refer to: sizes and strides of batch axes. Most calls need
// only a few.
class Integers {
 public:
  Integers() = default;
  Integers(const Integers&) = delete;
  Integers& operator=(const Integers&) = delete;
  std::int64_t* take(std::size_t count);

 private:
  static constexpr std::size_t kFew = 64;
  std::size_t used_ = 0;
  std::int64_t few_[kFew];
  std::vector<std::unique_ptr<std::int64_t[]>> more_;
};

// Throws ValueError if there are more entries than 64 bits can count.
BatchShape batch_of(const Shape& shape, Integers& memory);

// Strides of a view's leading axes (all but the last `inner`) along `batch`, 0 where broadcast.
const std::int64_t* batch_strides_of(const ArrayView& view, int inner, const BatchShape& batch,
                                     Integers& memory);

// Rows extend along all axes of a view except the last `inner` axes (0 or 1).
Operand rows_of(const ArrayView& view, int inner, const BatchShape& rows, Integers& memory);

}  // namespace regard
