#include "arrays.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "gil.hpp"

namespace regard {
namespace {

using py::detail::array_descriptor_proxy;
using py::detail::array_proxy;

constexpr int kFloat = 11, kDouble = 12;  // NPY_TYPES

// bfloat16 is a type that another package registers with NumPy, and is identified by its name.
// Reading the name takes a microsecond, so the type's number is cached.
bool is_bfloat16(const py::dtype& type) {
  static std::atomic<int> known{0};
  if (type.num() < kFirstUserType) return false;
  if (type.num() == known.load(std::memory_order_relaxed)) return true;
  if (type.itemsize() != 2 || text_of(type) != "bfloat16") return false;
  known.store(type.num(), std::memory_order_relaxed);
  return true;
}

// False if the kernels do not support the type.
bool element_of(const py::dtype& type, Element& element) {
  // Unsigned bytes are the raw bytes of a cache.
  constexpr std::pair<int, Element> kElements[] = {{0, Element::boolean},  {1, Element::int8},         {2, Element::float8},
                                                   {23, Element::float16}, {kFloat, Element::float32}, {kDouble, Element::float64}};
  for (const auto& [number, found] : kElements)
    if (type.num() == number) {
      element = found;
      return true;
    }
  element = Element::bfloat16;
  return is_bfloat16(type);
}

// Also returns the element type, so that it is not determined twice.
bool is_native(py::handle object, Accepts accepts, Element& element) {
  if (!is_plain_array(object)) return false;
  const auto* array = array_proxy(object.ptr());
  const auto* type = array_descriptor_proxy(array->descr);
  if (!element_of(py::reinterpret_borrow<py::dtype>(array->descr), element) ||
      (static_cast<unsigned>(accepts) & bit_of(element)) == 0)
    return false;
  if (type->byteorder == '>' || type->byteorder == '<') return false;
  if (!(array->flags & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) return false;
  for (int axis = 0; axis < array->nd; ++axis)
    if (array->strides[axis] % size_of(element) != 0) return false;
  return true;
}

// NumPy has no type for integers beyond 64 bits and converts them to an array of objects.
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
                          text_of(beyond));
}

// The part of an array with one element along each axis of stride 0, which holds all its elements.
py::array distinct_part(const py::array& array) {
  Shape shape = shape_of(array);
  bool repeats = false;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] <= 1 || array.strides(static_cast<py::ssize_t>(axis)) != 0) continue;
    shape[axis] = 1;
    repeats = true;
  }
  if (!repeats) return array;
  return py::array(array.dtype(), std::vector<py::ssize_t>(shape.begin(), shape.end()),
                   std::vector<py::ssize_t>(array.strides(), array.strides() + array.ndim()), array.data(), array);
}

}  // namespace

std::string describe(py::handle object) {
  if (py::isinstance<py::array>(object))
    return "an array of " + text_of(py::reinterpret_borrow<py::array>(object).dtype());
  return Py_TYPE(object.ptr())->tp_name;
}

std::string to_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    text += (axis ? ", " : "") + std::to_string(shape[axis]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

Shape shape_of(const py::array& array) { return Shape(array.shape(), array.shape() + array.ndim()); }

bool is_masked_array(py::handle object) {
  if (is_plain_array(object)) return false;
  const auto module = py::reinterpret_steal<py::object>(PyImport_GetModule(py::str("numpy.ma").ptr()));
  if (!module) {
    if (PyErr_Occurred()) throw py::error_already_set();
    return false;  // without the module there is no masked array
  }
  const py::object type = py::getattr(module, "MaskedArray", py::none());
  return PyType_Check(type.ptr()) &&
         PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(type.ptr()));
}

py::array as_array(const char* name, py::handle object) {
  if (is_plain_array(object)) return py::reinterpret_borrow<py::array>(object);
  if (is_masked_array(object))
    throw py::type_error(std::string(name) + " must be a plain array, got a masked array, whose mask "
                         "would be ignored");
  try {
    return call_python(py::module_::import("numpy").attr("asarray"), object);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    throw py::value_error(std::string(name) + " must be a number or a regular nested list: " +
                          text_of(error.value()));
  }
}

bool is_plain_array(py::handle object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) ==
         reinterpret_cast<PyObject*>(py::detail::npy_api::get().PyArray_Type_);
}

bool is_native(py::handle object, Accepts accepts) {
  Element element;
  return is_native(object, accepts, element);
}

ArrayView view_as(const char* name, const py::array& array, Element element) {
  const auto* given = array_proxy(array.ptr());
  ArrayView view{name, element, array, given->data,
                 Shape(given->dimensions, given->dimensions + given->nd),
                 Shape(given->strides, given->strides + given->nd)};
  const py::ssize_t item = array.itemsize();
  for (std::size_t axis = 0; axis < view.strides.size(); ++axis) view.strides[axis] /= item;
  return view;
}

ArrayView copy_as(const char* name, const py::array& array, const py::dtype& type, Element element) {
  const auto& numpy = py::detail::npy_api::get();
  constexpr int kEnsureCopy = 0x20;  // NPY_ARRAY_ENSURECOPY
  constexpr int kWanted = py::array::c_style | py::array::forcecast | kEnsureCopy |
                          py::detail::npy_api::NPY_ARRAY_ALIGNED_ | py::detail::npy_api::NPY_ARRAY_ENSUREARRAY_;
  const py::array distinct = distinct_part(array);
  // FromAny steals a reference to the type.
  const py::object copy = result_of_python(
      [&] { return numpy.PyArray_FromAny_(distinct.ptr(), type.inc_ref().ptr(), 0, 0, kWanted, nullptr); });
  ArrayView view = view_as(name, py::reinterpret_borrow<py::array>(copy), element);
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    const py::ssize_t size = array.shape(static_cast<py::ssize_t>(axis));
    if (view.shape[axis] == size) continue;
    view.shape[axis] = size;
    view.strides[axis] = 0;
  }
  return view;
}

ArrayView copied_integers(const char* name, py::handle object, const char* wanted) {
  py::array array = as_array(name, object);
  const char kind = array.dtype().kind();
  if (kind != 'i' && kind != 'u') {
    // NumPy gives an empty list the type float64.
    const bool is_empty_list =
        array.size() == 0 && (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()));
    if (kind == 'O') refuse_beyond_64_bits(name, array);
    if (!is_empty_list)
      throw py::type_error(std::string(name) + " must be " + wanted + ", got " +
                           (array.ndim() == 0 ? std::string(Py_TYPE(object.ptr())->tp_name)
                                              : text_of(array.dtype())));
  }
  // Integers, viewed as elements of the same size.
  const ArrayView copy = copy_as(name, array, py::dtype::of<std::int64_t>(), Element::float64);
  if (kind == 'u')
    for (const std::int64_t number : Distinct<std::int64_t>(copy))
      if (number < 0)
        throw py::value_error(std::string(name) + " must fit in 64 bits, got " +
                              std::to_string(static_cast<std::uint64_t>(number)));
  return copy;
}

ArrayView copied_numbers(const char* name, py::handle object, Element element) {
  const py::array given = as_array(name, object);
  const char kind = given.dtype().kind();
  if (kind != 'f' && kind != 'i' && kind != 'u' && !is_bfloat16(given.dtype()))
    throw py::type_error(std::string(name) + " must be an array of real numbers, got " +
                         (given.ndim() == 0 ? std::string(Py_TYPE(object.ptr())->tp_name) : describe(given)));
  const bool is_float = element == Element::float32;
  return copy_as(name, given, is_float ? py::dtype::of<float>() : py::dtype::of<double>(), element);
}

bool take_view(ArrayView& view, const char* name, py::handle object, Accepts accepts) {
  Element element;
  if (!is_native(object, accepts, element)) return false;
  view = view_as(name, py::reinterpret_borrow<py::array>(object), element);
  return true;
}

ArrayView view_of(const char* name, py::handle object, Accepts accepts) {
  ArrayView view;
  if (take_view(view, name, object, accepts)) return view;
  const char* wanted = accepts == Accepts::bool_mask ? "bool"
                       : accepts == Accepts::mask    ? "bool, float16, bfloat16, float32 or float64"
                       : accepts == Accepts::cache   ? "int8, float16, bfloat16, float32 or float64"
                       : accepts == Accepts::storage ? "float16, bfloat16, float32 or float64"
                                                     : "float32 or float64";
  throw py::type_error(std::string(name) + " must be an array of " + wanted + ", got " +
                       describe(object));
}

Scalar scalar_of(Element element) {
  return element == Element::float64 ? Scalar::float64 : Scalar::float32;
}

ResultType result_type_of(Scalar scalar) {
  const bool is_float = scalar == Scalar::float32;
  return {is_float ? Element::float32 : Element::float64,
          py::reinterpret_steal<py::object>(
              py::detail::npy_api::get().PyArray_DescrFromType_(is_float ? kFloat : kDouble))};
}

void ResultType::widen(const ArrayView& view) {
  if (!dtype)
    *this = {view.element,
             py::reinterpret_borrow<py::object>(array_proxy(view.array.ptr())->descr)};
  else if (element != view.element && element != Element::float64)
    *this = result_type_of(view.element == Element::float64 ? Scalar::float64 : Scalar::float32);
}

ResultType result_type_of(Views arrays) {
  ResultType type;
  for (const ArrayView* view : arrays) type.widen(*view);
  return type;
}

ResultType result_type_of(const std::vector<ArrayView>& arrays) {
  ResultType type;
  for (const ArrayView& view : arrays) type.widen(view);
  return type;
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

Shape broadcast_outer(Views arrays, int inner, const char* what) {
  Shape common;
  for (const ArrayView* view : arrays) {
    const int outer = std::max(view->axes() - inner, 0);
    if (broadcast_shape(common, Shape(view->shape.begin(), view->shape.begin() + outer))) continue;
    std::string names, shapes;
    for (const ArrayView* each : arrays) {
      const char* before = each == *arrays.begin() ? "" : each == *(arrays.end() - 1) ? " and " : ", ";
      names += before + std::string(each->name);
      shapes += before + to_text(each->shape);
    }
    throw py::value_error(names + " must have " + what + " that broadcast, got shapes " + shapes);
  }
  return common;
}

bool broadcasts_to(const Shape& own, const Shape& full) {
  if (own.size() > full.size()) return false;
  return std::equal(own.begin(), own.end(), full.end() - own.size(),
                    [](py::ssize_t size, py::ssize_t wanted) { return size == wanted || size == 1; });
}

std::int64_t* Integers::take(std::size_t count) {
  if (count == 0) return nullptr;
  if (used_ + count > kFew) {
    more_.emplace_back(new std::int64_t[count]);
    return more_.back().get();
  }
  std::int64_t* const taken = few_ + used_;
  used_ += count;
  return taken;
}

BatchShape batch_of(const Shape& shape, Integers& memory) {
  std::int64_t* const sizes = memory.take(shape.size());
  BatchShape batch{static_cast<int>(shape.size()), 1, sizes};
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    sizes[axis] = shape[axis];
    if (__builtin_mul_overflow(batch.count, is_empty ? 1 : shape[axis], &batch.count))
      throw py::value_error("batch axes " + to_text(shape) + " have more entries than 64 bits can count");
  }
  if (is_empty) batch.count = 0;
  return batch;
}

const std::int64_t* batch_strides_of(const ArrayView& view, int inner, const BatchShape& batch,
                                     Integers& memory) {
  std::int64_t* const strides = memory.take(static_cast<std::size_t>(batch.axes));
  const int missing = batch.axes - std::max(view.axes() - inner, 0);
  for (int axis = 0; axis < batch.axes; ++axis) {
    const std::size_t own = static_cast<std::size_t>(std::max(axis - missing, 0));
    const bool is_present = axis >= missing && view.shape[own] != 1;
    strides[axis] = is_present ? view.strides[own] : 0;
  }
  return strides;
}

Operand rows_of(const ArrayView& view, int inner, const BatchShape& rows, Integers& memory) {
  Operand operand;
  operand.data = view.data;
  operand.element = view.element;
  operand.column_stride = inner ? view.stride(1) : 0;
  operand.batch_strides = batch_strides_of(view, inner, rows, memory);
  return operand;
}

}  // namespace regard
