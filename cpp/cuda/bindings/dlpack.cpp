#include "dlpack.hpp"

#include <cstring>
#include <memory>
#include <string>

namespace regard::cuda {

struct DLDevice {
  std::int32_t type;
  std::int32_t id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

namespace {

struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};

struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor tensor;
};

constexpr const char* kPlain = "dltensor";
constexpr const char* kVersioned = "dltensor_versioned";
constexpr std::uint64_t kReadOnly = 1;
constexpr std::int32_t kCuda = 2;

template <class Managed>
void delete_managed(void* managed) {
  auto* const typed = static_cast<Managed*>(managed);
  if (typed->deleter) typed->deleter(typed);
}

// Owns the data that the tensor of an exported array points to.
struct Exported {
  py::object owner;
  std::vector<std::int64_t> shape, strides;
};

// Other libraries may call it from any thread, without the GIL.
template <class Managed>
void release_exported(Managed* managed) {
  const py::gil_scoped_acquire gil;
  delete static_cast<Exported*>(managed->context);
  delete managed;
}

// A capsule owns its tensor unless a library has taken it, which renames the capsule.
template <class Managed, const char* const& kName>
void release_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kName))
    delete_managed<Managed>(PyCapsule_GetPointer(capsule, kName));
}

template <class Managed>
Managed* managed_tensor(std::unique_ptr<Exported> exported, void* data, std::int32_t device, DLDataType dtype) {
  auto* const managed = new Managed{};
  managed->tensor = {data,  {kCuda, device}, static_cast<std::int32_t>(exported->shape.size()),
                     dtype, exported->shape.data(), exported->strides.data(), 0};
  managed->deleter = release_exported<Managed>;
  managed->context = exported.release();
  return managed;
}

}  // namespace

ImportedTensor::ImportedTensor(py::capsule capsule) {
  const char* const name = capsule.name();
  const std::string found = name ? name : "";
  is_versioned_ = found == kVersioned;
  if (!is_versioned_ && found != kPlain)
    throw py::value_error("__dlpack__ must return a capsule named 'dltensor' or 'dltensor_versioned', got '" +
                          found + "'");
  managed_ = capsule.get_pointer();
  if (is_versioned_) {
    const auto* const versioned = static_cast<const DLManagedTensorVersioned*>(managed_);
    if (versioned->version.major != 1) {
      const std::string version = std::to_string(versioned->version.major);
      managed_ = nullptr;  // the capsule keeps it
      throw py::value_error("DLPack's version must be 1, got " + version);
    }
    is_read_only_ = versioned->flags & kReadOnly;
  }
  if (PyCapsule_SetName(capsule.ptr(), is_versioned_ ? "used_dltensor_versioned" : "used_dltensor") != 0) {
    managed_ = nullptr;
    throw py::error_already_set();
  }
}

ImportedTensor::~ImportedTensor() {
  if (!managed_) return;
  if (is_versioned_)
    delete_managed<DLManagedTensorVersioned>(managed_);
  else
    delete_managed<DLManagedTensor>(managed_);
}

const DLTensor& ImportedTensor::tensor() const {
  return is_versioned_ ? static_cast<const DLManagedTensorVersioned*>(managed_)->tensor
                       : static_cast<const DLManagedTensor*>(managed_)->tensor;
}

std::uintptr_t ImportedTensor::address() const {
  return reinterpret_cast<std::uintptr_t>(tensor().data) + tensor().byte_offset;
}

py::tuple ImportedTensor::device() const {
  return py::make_tuple(tensor().device.type, tensor().device.id);
}

py::tuple ImportedTensor::element() const {
  return py::make_tuple(tensor().dtype.code, tensor().dtype.bits, tensor().dtype.lanes);
}

py::tuple ImportedTensor::shape() const {
  py::tuple sizes(tensor().ndim);
  for (std::int32_t axis = 0; axis < tensor().ndim; ++axis)
    sizes[static_cast<std::size_t>(axis)] = tensor().shape[axis];
  return sizes;
}

py::object ImportedTensor::strides() const {
  if (!tensor().strides) return py::none();
  py::tuple steps(tensor().ndim);
  for (std::int32_t axis = 0; axis < tensor().ndim; ++axis)
    steps[static_cast<std::size_t>(axis)] = tensor().strides[axis];
  return steps;
}

py::capsule export_tensor(py::object owner, std::uintptr_t address, std::int32_t device, std::uint8_t code,
                          std::uint8_t bits, const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides, bool is_versioned) {
  auto exported = std::make_unique<Exported>(Exported{std::move(owner), shape, strides});
  void* const data = reinterpret_cast<void*>(address);
  const DLDataType dtype{code, bits, 1};
  PyObject* capsule = nullptr;
  if (is_versioned) {
    auto* const managed = managed_tensor<DLManagedTensorVersioned>(std::move(exported), data, device, dtype);
    managed->version = {1, 0};
    capsule = PyCapsule_New(managed, kVersioned, release_capsule<DLManagedTensorVersioned, kVersioned>);
    if (!capsule) release_exported(managed);
  } else {
    auto* const managed = managed_tensor<DLManagedTensor>(std::move(exported), data, device, dtype);
    capsule = PyCapsule_New(managed, kPlain, release_capsule<DLManagedTensor, kPlain>);
    if (!capsule) release_exported(managed);
  }
  if (!capsule) throw py::error_already_set();
  return py::reinterpret_steal<py::capsule>(capsule);
}

}  // namespace regard::cuda
