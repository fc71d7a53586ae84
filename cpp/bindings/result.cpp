#include "result.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "gil.hpp"

namespace regard {
namespace {

py::array array_of(const ArrayView& view) { return py::reinterpret_borrow<py::array>(view.array); }

struct Extent {
  const char* begin;
  const char* end;
};

Extent extent_of(const ArrayView& view) {
  const char* data = static_cast<const char*>(view.data);
  Extent extent{data, data + array_of(view).itemsize()};
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] == 0) return {data, data};
    const py::ssize_t reach = (view.shape[axis] - 1) * array_of(view).strides(static_cast<py::ssize_t>(axis));
    (reach < 0 ? extent.begin : extent.end) += reach;
  }
  return extent;
}

bool shares_memory(const ArrayView& a, const ArrayView& b) {
  const Extent first = extent_of(a), second = extent_of(b);
  if (first.begin == first.end || second.begin == second.end || first.end <= second.begin ||
      second.end <= first.begin)
    return false;
  const py::module_ numpy = py::module_::import("numpy");
  try {
    return call_python(numpy.attr("shares_memory"), a.array, b.array, py::int_(100000)).cast<bool>();
  } catch (py::error_already_set& error) {
    // For some strides the exact answer is hard to compute; the conservative answer is yes.
    if (error.matches(numpy.attr("exceptions").attr("TooHardError"))) return true;
    throw;
  }
}

// Conservative: also true for arrays whose axes are interleaved without overlap.
bool repeats_an_element(const ArrayView& view) {
  std::vector<std::pair<py::ssize_t, py::ssize_t>> axes;  // stride and size, in bytes and elements
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] == 0) return false;
    if (view.shape[axis] > 1)
      axes.emplace_back(std::abs(array_of(view).strides(static_cast<py::ssize_t>(axis))), view.shape[axis]);
  }
  std::sort(axes.begin(), axes.end());
  py::ssize_t reach = array_of(view).itemsize();
  for (const auto& [stride, size] : axes) {
    if (stride < reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

// Checks types only: a check that calls the object's own code could change the inputs after their
// views have been taken.
bool is_array_of(py::handle object, py::handle type) {
  if (!py::isinstance<py::array>(object) || is_masked_array(object)) return false;
  return py::reinterpret_borrow<py::array>(object).dtype().equal(type);
}

// A view of the array that NumPy has made, or an error that states the purpose of its memory, which
// NumPy's error does not.
ArrayView view_of_new(const char* name, const ResultType& type, const Shape& shape, PyObject* made) {
  if (made) {
    ArrayView view;
    take_view(view, name, py::reinterpret_steal<py::object>(made), Accepts::storage);
    return view;
  }
  // If the number of bytes does not fit in 64 bits, NumPy raises ValueError.
  py::error_already_set error;
  py::ssize_t bytes = py::reinterpret_borrow<py::dtype>(type.dtype).itemsize();
  bool is_beyond = false;
  for (const py::ssize_t size : shape) is_beyond |= __builtin_mul_overflow(bytes, size, &bytes);
  if (!is_beyond && !error.matches(PyExc_MemoryError)) throw std::move(error);
  const std::string count =
      is_beyond ? "more bytes than 64 bits can count" : std::to_string(bytes) + " bytes";
  const std::string text = "cannot allocate " + count + " of " + name + ", shape " + to_text(shape);
  PyErr_SetString(PyExc_MemoryError, text.c_str());
  throw py::error_already_set();
}

// A new array whose axes have the same memory order as another array's, as in NumPy's functions.
ArrayView new_array_like(const char* name, const ResultType& type, const ArrayView& like) {
  std::vector<std::size_t> order(like.shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(like.strides[a]) > std::abs(like.strides[b]);
  });
  if (std::is_sorted(order.begin(), order.end())) return new_array(name, type, like.shape);
  Shape shape = like.shape;
  py::tuple axes(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    shape[i] = like.shape[order[i]];
    axes[order[i]] = i;
  }
  const ArrayView made = new_array(name, type, shape);
  ArrayView view;
  take_view(view, name, made.array.attr("transpose")(axes), Accepts::storage);
  return view;
}

}  // namespace

ArrayView new_array(const char* name, const ResultType& type, const Shape& shape) {
  const auto& numpy = py::detail::npy_api::get();
  // NewFromDescr steals a reference to the type.
  return view_of_new(name, type, shape, numpy.PyArray_NewFromDescr_(
      numpy.PyArray_Type_, type.dtype.inc_ref().ptr(), static_cast<int>(shape.size()), shape.begin(), nullptr,
      nullptr, 0, nullptr));
}

ArrayView new_zeros(const char* name, const ResultType& type, const Shape& shape) {
  const py::object zeros = py::module_::import("numpy").attr("zeros");
  py::tuple sizes(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) sizes[axis] = shape[axis];
  return view_of_new(name, type, shape,
                     PyObject_CallFunctionObjArgs(zeros.ptr(), sizes.ptr(), type.dtype.ptr(), nullptr));
}

Result::Result(py::handle out, const ResultType& type, const Shape& shape, const ArrayView* like, const char* name)
    : given_(py::reinterpret_borrow<py::object>(out)), is_direct_(true) {
  if (out.is_none()) {
    view = like ? new_array_like("output", type, *like) : new_array("output", type, shape);
    return;
  }
  const std::string must = std::string(name) + " must ";
  if (!is_array_of(out, type.dtype))
    throw py::type_error(must + "be an array of " + text_of(type.dtype) + ", got " + describe(out));
  // A memmap or another subclass is written through a plain view of its memory.
  out_ = view_as(name, is_plain_array(out) ? py::array(given_) : py::array(call_python(py::module_::import("numpy").attr("asarray"), out)),
                 type.element);
  if (out_.shape != shape)
    throw py::value_error(must + "have shape " + to_text(shape) + ", got " + to_text(out_.shape));
  if (!array_of(out_).writeable()) throw py::value_error(must + "be writeable, got a read-only array");
  if (repeats_an_element(out_))
    throw py::value_error(must + "have a separate element for every result, got strides " +
                          text_of(out_.array.attr("strides")) + " for shape " + to_text(shape));
  is_direct_ = is_native(out_.array, Accepts::storage);
  view = is_direct_ ? out_ : new_array(name, type, shape);
}

void Result::forbid_overlap(const ArrayView& input, bool may_be_same) const {
  if (given_.is_none()) return;
  if (may_be_same && out_.data == input.data && out_.shape == input.shape &&
      out_.strides == input.strides)
    return;
  if (shares_memory(out_, input))
    throw py::value_error(std::string(out_.name) + " must not overlap " + input.name +
                          ": it would be overwritten before it is read; pass another array");
}

void Result::forbid_overlap(const Result& other) const {
  if (given_.is_none() || other.given_.is_none() || !shares_memory(out_, other.out_)) return;
  throw py::value_error(std::string(out_.name) + " must not overlap " + other.out_.name +
                        ": two results cannot share memory");
}

py::object Result::deliver() const {
  if (given_.is_none()) return view.array;
  if (!is_direct_) call_python(py::module_::import("numpy").attr("copyto"), out_.array, view.array);
  return given_;
}

}  // namespace regard
