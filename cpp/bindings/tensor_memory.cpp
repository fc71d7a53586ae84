// Converts tensors of other libraries to arrays that share their memory, through the table of C
// functions that their type provides (DLPack's exchange API, https://dmlc.github.io/dlpack). The
// library's own conversion takes several times as long.
#include <cstdint>

#include "arrays.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

constexpr const char* kTable = "__dlpack_c_exchange_api__";
constexpr const char* kCapsule = "dlpack_exchange_api";
constexpr std::uint32_t kMajorVersion = 1;
constexpr std::int32_t kCpu = 1;
constexpr int kMostAxes = 64;  // NPY_MAXDIMS of NumPy 2

// The structures as defined by DLPack.
struct Memory {
  void* data;
  std::int32_t device_type, device;
  std::int32_t axes;
  std::uint8_t kind, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null if contiguous
  std::uint64_t byte_offset;
};
struct Table {
  std::uint32_t major, minor;
  const Table* older;
  void* allocate;
  void* keep;
  void* to_object;
  int (*look)(void* object, Memory* memory);  // valid until the caller returns; may be null
  void* stream;
};
enum Kind : std::uint8_t { kInt = 0, kUnsigned = 1, kReal = 2, kBrain = 4, kBoolean = 6 };

// Null if the type has no table of this version.
const Table* table_of(py::handle object) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  const auto capsule = py::reinterpret_steal<py::object>(PyObject_GetAttrString(type, kTable));
  const auto* table = capsule ? static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule)) : nullptr;
  if (!table) PyErr_Clear();
  while (table && table->major != kMajorVersion) table = table->older;
  return table && table->look ? table : nullptr;
}

// NumPy's number of a type, or -1. bfloat16 is defined by another package.
int type_number(const Memory& memory) {
  if (memory.lanes != 1) return -1;
  const auto of_bits = [&](int of_8, int of_16, int of_32, int of_64) {
    switch (memory.bits) {
      case 8:
        return of_8;
      case 16:
        return of_16;
      case 32:
        return of_32;
      default:
        return memory.bits == 64 ? of_64 : -1;
    }
  };
  switch (memory.kind) {
    case kInt:
      return of_bits(1, 3, 5, sizeof(long) == 8 ? 7 : 9);
    case kUnsigned:
      return of_bits(2, 4, 6, sizeof(long) == 8 ? 8 : 10);
    case kReal:
      return of_bits(-1, 23, 11, 12);
    case kBoolean:
      return of_bits(0, -1, -1, -1);
    default:
      return -1;
  }
}

}  // namespace

py::object array_of_tensor(py::handle tensor, py::handle bfloat16) {
  const auto& numpy = py::detail::npy_api::get();
  const Table* const table = table_of(tensor);
  Memory memory{};
  if (!table) return py::none();
  if (table->look(tensor.ptr(), &memory) != 0) {
    PyErr_Clear();
    return py::none();
  }
  if (memory.device_type != kCpu || memory.axes > kMostAxes) return py::none();
  py::object type;
  if (memory.kind == kBrain) {
    if (bfloat16.is_none() || memory.bits != 16) return py::none();
    type = py::reinterpret_borrow<py::object>(bfloat16);
  } else {
    const int number = type_number(memory);
    if (number < 0) return py::none();
    type = py::reinterpret_steal<py::object>(numpy.PyArray_DescrFromType_(number));
  }
  Shape shape, strides;
  bool is_empty = false;
  const py::ssize_t item = memory.bits / 8;
  for (int axis = 0; axis < memory.axes; ++axis) {
    shape.push_back(memory.shape[axis]);
    if (memory.strides) strides.push_back(memory.strides[axis] * item);
    is_empty |= memory.shape[axis] == 0;
  }
  if (!memory.data && !is_empty) return py::none();
  char* const data = static_cast<char*>(memory.data) + memory.byte_offset;
  // With a null pointer, NumPy would allocate memory.
  static char nothing;
  PyObject* const made = numpy.PyArray_NewFromDescr_(
      numpy.PyArray_Type_, type.release().ptr(), memory.axes, shape.begin(), memory.strides ? strides.begin() : nullptr,
      data ? data : &nothing, py::detail::npy_api::NPY_ARRAY_WRITEABLE_, nullptr);
  if (!made) throw py::error_already_set();
  auto array = py::reinterpret_steal<py::object>(made);
  if (numpy.PyArray_SetBaseObject_(made, py::reinterpret_borrow<py::object>(tensor).release().ptr()) != 0)
    throw py::error_already_set();
  return array;
}

}  // namespace regard
