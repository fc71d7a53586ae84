#include "arrays.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace regard {
namespace {

constexpr int kBool = 0, kByte = 1, kFloat = 11, kDouble = 12, kHalf = 23;  // NPY_TYPES

// bfloat16 is a type that another package registers with NumPy; its name says so.
bool is_bfloat16(const py::dtype& type) {
  return type.num() >= kFirstUserType && type.itemsize() == 2 &&
         py::str(py::handle(type).attr("name")).cast<std::string>() == "bfloat16";
}

// False where the kernels know no such element.
bool element_of(const py::dtype& type, Element& element) {
  switch (type.num()) {
    case kBool:
      element = Element::boolean;
      return true;
    case kByte:
      element = Element::int8;
      return true;
    case kHalf:
      element = Element::float16;
      return true;
    case kFloat:
      element = Element::float32;
      return true;
    case kDouble:
      element = Element::float64;
      return true;
    default:
      element = Element::bfloat16;
      return is_bfloat16(type);
  }
}

bool accepts_element(Accepts accepts, Element element) {
  switch (element) {
    case Element::boolean:
      return accepts == Accepts::mask;
    case Element::int8:
      return accepts == Accepts::cache;
    case Element::float16:
    case Element::bfloat16:
      return accepts == Accepts::storage || accepts == Accepts::cache;
    default:
      return true;
  }
}

// The exact type: a subclass may mean something else by its elements.
bool is_plain_array(py::handle object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) ==
         reinterpret_cast<PyObject*>(py::detail::npy_api::get().PyArray_Type_);
}

// The element type too, so that nobody has to ask for it twice.
bool is_native(py::handle object, Accepts accepts, Element& element) {
  if (!is_plain_array(object)) return false;
  const py::array array = py::reinterpret_borrow<py::array>(object);
  const py::dtype type = array.dtype();
  if (!element_of(type, element) || !accepts_element(accepts, element)) return false;
  if (type.byteorder() == '>' || type.byteorder() == '<') return false;
  if (!(array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) return false;
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis)
    if (array.strides(axis) % array.itemsize() != 0) return false;
  return true;
}

ArrayView view_of(const char* name, py::handle object, Element element) {
  ArrayView view{name, element, py::reinterpret_borrow<py::array>(object), {}, {}};
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

// NumPy has no type for Python's integers beyond 64 bits, and leaves them the objects that they are.
void refuse_beyond_64_bits(const char* name, const py::array& objects) {
  py::object beyond;
  for (const py::handle each : objects.attr("flat")) {
    if (!PyLong_CheckExact(each.ptr())) return;
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(each.ptr(), &overflow);
    if (overflow != 0 && !beyond) beyond = py::reinterpret_borrow<py::object>(each);
  }
  if (beyond)
    throw py::value_error(std::string(name) + " must fit in 64 bits, got " +
                          std::string(py::str(beyond)));
}

}  // namespace

std::string to_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    text += (axis ? ", " : "") + std::to_string(shape[axis]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

py::array as_array(const char* name, py::handle object) {
  const py::module_ numpy = py::module_::import("numpy");
  if (py::isinstance(object, numpy.attr("ma").attr("MaskedArray")))
    throw py::type_error(std::string(name) + " must be a plain array, got a masked array, whose mask "
                         "would be ignored");
  try {
    return numpy.attr("asarray")(object);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    throw py::value_error(std::string(name) + " must be a number or a regular nested list: " +
                          std::string(py::str(error.value())));
  }
}

py::array integers_of(const char* name, py::handle object, const char* wanted) {
  const py::array array = as_array(name, object);
  const char kind = array.dtype().kind();
  if (kind == 'i' || kind == 'u') return array;
  // NumPy's type for no numbers is float64.
  if (array.size() == 0 && (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())))
    return array.attr("astype")("int64");
  if (kind == 'O') refuse_beyond_64_bits(name, array);
  throw py::type_error(std::string(name) + " must be " + wanted + ", got " +
                       (array.ndim() == 0 ? std::string(Py_TYPE(object.ptr())->tp_name)
                                          : std::string(py::str(array.dtype()))));
}

bool is_native(py::handle object, Accepts accepts) {
  Element element;
  return is_native(object, accepts, element);
}

ArrayView view_of(const char* name, py::handle object, Accepts accepts) {
  Element element;
  if (is_native(object, accepts, element)) return view_of(name, object, element);
  const char* wanted = accepts == Accepts::mask      ? "bool, float32 or float64"
                       : accepts == Accepts::cache ? "int8, float16, bfloat16, float32 or float64"
                       : accepts == Accepts::storage ? "float16, bfloat16, float32 or float64"
                                                     : "float32 or float64";
  throw py::type_error(std::string(name) + " must be an array of " + wanted + ", got " +
                       describe(object));
}

Scalar scalar_of(Element element) {
  return element == Element::float64 ? Scalar::float64 : Scalar::float32;
}

ResultType result_type_of(Scalar scalar) {
  if (scalar == Scalar::float32) return {Element::float32, py::dtype(kFloat)};
  return {Element::float64, py::dtype(kDouble)};
}

ResultType result_type_of(const std::vector<const ArrayView*>& arrays) {
  bool is_mixed = false, has_double = false;
  for (const ArrayView* view : arrays) {
    is_mixed |= view->element != arrays[0]->element;
    has_double |= view->element == Element::float64;
  }
  if (has_double) return result_type_of(Scalar::float64);
  if (is_mixed) return result_type_of(Scalar::float32);
  return {arrays[0]->element, arrays[0]->array.dtype()};
}

bool broadcast_shape(Shape& common, const Shape& shape) {
  if (shape.size() > common.size()) common.insert(common.begin(), shape.size() - common.size(), 1);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    py::ssize_t& size = common[common.size() - shape.size() + i];
    if (size == shape[i] || shape[i] == 1) continue;
    if (size != 1) return false;
    size = shape[i];
  }
  return true;
}

void broadcast_into(Shape& common, const Shape& shape, const std::vector<const ArrayView*>& all,
                    const char* what) {
  if (broadcast_shape(common, shape)) return;
  std::string names, shapes;
  for (std::size_t n = 0; n < all.size(); ++n) {
    names += (n == 0 ? "" : n + 1 == all.size() ? " and " : ", ") + std::string(all[n]->name);
    shapes += (n == 0 ? "" : n + 1 == all.size() ? " and " : ", ") + to_text(all[n]->shape);
  }
  throw py::value_error(names + " must have " + what + " that broadcast, got shapes " + shapes);
}

bool broadcasts_to(const Shape& own, const Shape& full) {
  return own.size() <= full.size() &&
         std::equal(own.rbegin(), own.rend(), full.rbegin(),
                    [](py::ssize_t size, py::ssize_t wanted) { return size == wanted || size == 1; });
}

void set_rows(Operand& operand, const ArrayView& view, int inner, const BatchShape& rows) {
  operand.data = const_cast<void*>(view.array.data());
  operand.element = view.element;
  operand.head_stride = operand.row_stride = 0;
  operand.column_stride = inner ? view.stride(1) : 0;
  set_batch_strides(operand, view, inner, rows);
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

ArrayView new_array(const char* name, const ResultType& type, const Shape& shape) {
  try {
    return view_of(name, py::array(type.dtype, shape), type.element);
  } catch (py::error_already_set& error) {
    // NumPy does not say of what; where 64 bits do not count the bytes, it has a ValueError.
    py::ssize_t bytes = type.dtype.itemsize();
    bool is_beyond = false;
    for (const py::ssize_t size : shape) is_beyond |= __builtin_mul_overflow(bytes, size, &bytes);
    if (!is_beyond && !error.matches(PyExc_MemoryError)) throw;
    const std::string count =
        is_beyond ? "more bytes than 64 bits count" : std::to_string(bytes) + " bytes";
    const std::string text =
        "cannot allocate " + count + " of " + name + ", shape " + to_text(shape);
    PyErr_SetString(PyExc_MemoryError, text.c_str());
    throw py::error_already_set();
  }
}

Result::Result(py::handle out, const ResultType& type, const Shape& shape)
    : given_(py::reinterpret_borrow<py::object>(out)), is_direct_(true) {
  if (out.is_none()) {
    view = new_array("output", type, shape);
    return;
  }
  const py::module_ numpy = py::module_::import("numpy");
  if (!py::isinstance<py::array>(out) || py::isinstance(out, numpy.attr("ma").attr("MaskedArray")) ||
      !py::reinterpret_borrow<py::array>(out).dtype().equal(type.dtype))
    throw py::type_error("out must be an array of " + std::string(py::str(type.dtype)) + ", got " +
                         describe(out));
  // A memmap or another subclass is written through a plain view of its memory.
  out_ = view_of("out", is_plain_array(out) ? given_ : numpy.attr("asarray")(out), type.element);
  if (out_.shape != shape)
    throw py::value_error("out must have shape " + to_text(shape) + ", got " +
                          to_text(out_.shape));
  if (!out_.array.writeable())
    throw py::value_error("out must be writeable, got a read-only array");
  if (repeats_an_element(out_))
    throw py::value_error("out must have an element of its own for every result, got strides " +
                          std::string(py::str(out_.array.attr("strides"))) + " for shape " +
                          to_text(shape));
  is_direct_ = is_native(out_.array, Accepts::storage);
  view = is_direct_ ? out_ : new_array("out", type, shape);
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
