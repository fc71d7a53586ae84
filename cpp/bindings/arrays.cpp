#include "arrays.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace regard {
namespace {

constexpr int kBool = 0, kFloat = 11, kDouble = 12;  // NPY_TYPES

bool is_readable(const py::array& array, bool allow_bool) {
  const py::dtype type = array.dtype();
  const int number = type.num();
  if (number != kFloat && number != kDouble && !(allow_bool && number == kBool)) return false;
  if (type.byteorder() == '>' || type.byteorder() == '<') return false;
  if (!(array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) return false;
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis)
    if (array.strides(axis) % array.itemsize() != 0) return false;
  return true;
}

// The exact type: a subclass may mean something else by its elements.
bool is_plain_array(py::handle object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) ==
         reinterpret_cast<PyObject*>(py::detail::npy_api::get().PyArray_Type_);
}

ArrayView view_of(const char* name, py::handle object) {
  ArrayView view{name, py::reinterpret_borrow<py::array>(object), {}, {}};
  const py::ssize_t item = view.array.itemsize();
  const std::size_t axes = static_cast<std::size_t>(view.array.ndim());
  view.shape.assign(view.array.shape(), view.array.shape() + axes);
  view.strides.resize(axes);
  for (std::size_t axis = 0; axis < axes; ++axis)
    view.strides[axis] = view.array.strides()[axis] / item;
  return view;
}

std::string describe(py::handle object) {
  if (py::isinstance<py::array>(object))
    return "an array of " + std::string(py::str(py::handle(object).attr("dtype")));
  return Py_TYPE(object.ptr())->tp_name;
}

struct Extent {
  const char* begin;
  const char* end;
};

Extent extent_of(const ArrayView& view) {
  const char* data = static_cast<const char*>(view.array.data());
  Extent extent{data, data + view.array.itemsize()};
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] == 0) return {data, data};
    const py::ssize_t reach = (view.shape[axis] - 1) * view.array.strides()[axis];
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
    return numpy.attr("shares_memory")(a.array, b.array, py::arg("max_work") = 100000)
        .cast<bool>();
  } catch (py::error_already_set& error) {
    // The exact answer is a hard problem for some strides; then the careful answer is yes.
    if (error.matches(numpy.attr("exceptions").attr("TooHardError"))) return true;
    throw;
  }
}

// Careful: also true for arrays whose axes are interleaved without meeting.
bool repeats_an_element(const ArrayView& view) {
  std::vector<std::pair<py::ssize_t, py::ssize_t>> axes;  // stride and size, in bytes and elements
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] == 0) return false;
    if (view.shape[axis] > 1)
      axes.emplace_back(std::abs(view.array.strides()[axis]), view.shape[axis]);
  }
  std::sort(axes.begin(), axes.end());
  py::ssize_t reach = view.array.itemsize();
  for (const auto& [stride, size] : axes) {
    if (stride < reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace

std::string to_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    text += (axis ? ", " : "") + std::to_string(shape[axis]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

bool is_readable_float(py::handle object) {
  return is_plain_array(object) && is_readable(py::reinterpret_borrow<py::array>(object), false);
}

bool is_readable_mask(py::handle object) {
  return is_plain_array(object) && is_readable(py::reinterpret_borrow<py::array>(object), true);
}

ArrayView float_view(const char* name, py::handle object) {
  if (!is_readable_float(object))
    throw py::type_error(std::string(name) + " must be an array of float32 or float64, got " +
                         describe(object));
  return view_of(name, object);
}

ArrayView mask_view(py::handle object) {
  if (!is_readable_mask(object))
    throw py::type_error("mask must be an array of bool, float32 or float64, got " +
                         describe(object));
  return view_of("mask", object);
}

Scalar scalar_of(const ArrayView& view) {
  return view.array.dtype().num() == kFloat ? Scalar::float32 : Scalar::float64;
}

MaskKind mask_kind_of(const ArrayView& view) {
  switch (view.array.dtype().num()) {
    case kBool:
      return MaskKind::boolean;
    case kFloat:
      return MaskKind::float32;
    default:
      return MaskKind::float64;
  }
}

void broadcast_into(Shape& common, const Shape& shape, const std::vector<const ArrayView*>& all,
                    const char* what) {
  if (shape.size() > common.size()) common.insert(common.begin(), shape.size() - common.size(), 1);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    py::ssize_t& size = common[common.size() - shape.size() + i];
    if (size == shape[i] || shape[i] == 1) continue;
    if (size == 1) {
      size = shape[i];
      continue;
    }
    std::string names, shapes;
    for (std::size_t n = 0; n < all.size(); ++n) {
      names += (n == 0 ? "" : n + 1 == all.size() ? " and " : ", ") + std::string(all[n]->name);
      shapes += (n == 0 ? "" : n + 1 == all.size() ? " and " : ", ") + to_text(all[n]->shape);
    }
    throw py::value_error(names + " must have " + what + " that broadcast, got shapes " + shapes);
  }
}

bool broadcasts_to(const Shape& own, const Shape& full) {
  return own.size() <= full.size() &&
         std::equal(own.rbegin(), own.rend(), full.rbegin(),
                    [](py::ssize_t size, py::ssize_t wanted) { return size == wanted || size == 1; });
}

void set_batch_strides(Operand& operand, const ArrayView& view, int inner,
                       const BatchShape& batch) {
  const int own = view.axes() - inner;
  for (int axis = 0; axis < batch.axes; ++axis) {
    const int mine = axis - (batch.axes - own);
    const bool is_present = mine >= 0 && view.shape[static_cast<std::size_t>(mine)] != 1;
    operand.batch_strides[axis] =
        is_present ? view.strides[static_cast<std::size_t>(mine)] : 0;
  }
}

BatchShape batch_of(const Shape& shape) {
  BatchShape batch;
  batch.axes = static_cast<int>(shape.size());
  batch.count = 1;
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    batch.sizes[axis] = shape[axis];
    if (__builtin_mul_overflow(batch.count, is_empty ? 1 : shape[axis], &batch.count))
      throw py::value_error("batch axes " + to_text(shape) + " have more entries than 64 bits count");
  }
  if (is_empty) batch.count = 0;
  return batch;
}

py::array new_array(Scalar scalar, const Shape& shape) {
  return py::array(py::dtype(scalar == Scalar::float32 ? kFloat : kDouble), shape);
}

Result::Result(py::handle out, Scalar scalar, const Shape& shape)
    : given_(py::reinterpret_borrow<py::object>(out)), is_direct_(true) {
  if (out.is_none()) {
    view = view_of("output", new_array(scalar, shape));
    return;
  }
  const char* type = scalar == Scalar::float32 ? "float32" : "float64";
  const py::dtype wanted(scalar == Scalar::float32 ? kFloat : kDouble);
  const py::module_ numpy = py::module_::import("numpy");
  if (!py::isinstance<py::array>(out) || py::isinstance(out, numpy.attr("ma").attr("MaskedArray")) ||
      !py::reinterpret_borrow<py::array>(out).dtype().equal(wanted))
    throw py::type_error(std::string("out must be an array of ") + type + ", got " +
                         describe(out));
  // A memmap or another subclass is written through a plain view of its memory.
  out_ = view_of("out", is_plain_array(out) ? given_ : numpy.attr("asarray")(out));
  if (out_.shape != shape)
    throw py::value_error("out must have shape " + to_text(shape) + ", got " +
                          to_text(out_.shape));
  if (!out_.array.writeable())
    throw py::value_error("out must be writeable, got a read-only array");
  if (repeats_an_element(out_))
    throw py::value_error("out must have an element of its own for every result, got strides " +
                          std::string(py::str(out_.array.attr("strides"))) + " for shape " +
                          to_text(shape));
  is_direct_ = is_readable_float(out_.array);
  view = is_direct_ ? out_ : view_of("out", new_array(scalar, shape));
}

void Result::forbid_overlap(const ArrayView& input, bool may_be_same) const {
  if (given_.is_none()) return;
  if (may_be_same && out_.array.data() == input.array.data() && out_.shape == input.shape &&
      out_.strides == input.strides)
    return;
  if (shares_memory(out_, input))
    throw py::value_error("out must not overlap " + std::string(input.name) +
                          ": it would be overwritten before it is read; pass another array");
}

py::object Result::deliver() const {
  if (given_.is_none()) return view.array;
  if (!is_direct_) py::module_::import("numpy").attr("copyto")(out_.array, view.array);
  return given_;
}

}  // namespace regard
