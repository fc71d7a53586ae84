// regard._cuda: problems, memory, arrays of other libraries, and information about CUDA. Python
// defines names, shapes and defaults (python/regard/cuda).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <string>

#include "../attention.hpp"
#include "dlpack.hpp"
#include "errors.hpp"
#include "memory.hpp"
#include "problem.hpp"

namespace regard::cuda {
namespace {

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

// The number of devices, with the name and text of the error if CUDA cannot report it.
py::dict device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  py::dict found;
  found["count"] = error == cudaSuccess ? count : 0;
  found["error"] = error == cudaSuccess ? "" : cudaGetErrorName(error);
  found["text"] = error == cudaSuccess ? "" : cudaGetErrorString(error);
  return found;
}

py::dict device(int number) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties");
  py::dict facts;
  facts["name"] = std::string(properties.name);
  facts["compute_capability"] = py::make_tuple(properties.major, properties.minor);
  facts["memory_bytes"] = properties.totalGlobalMem;
  facts["multiprocessors"] = properties.multiProcessorCount;
  return facts;
}

py::tuple compute_capability(int number) {
  return py::make_tuple(attribute_of(number, cudaDevAttrComputeCapabilityMajor),
                        attribute_of(number, cudaDevAttrComputeCapabilityMinor));
}

// 13000 is CUDA 13.0; 0 if no driver is loaded.
int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int current_device() {
  int number = 0;
  check(cudaGetDevice(&number), "cudaGetDevice");
  return number;
}

// The device that an address belongs to, or None for memory that no device can read.
py::object device_of(std::uintptr_t address) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address)), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) return py::none();
  return py::int_(attributes.device);
}

py::list kernel_rows() {
  int count = 0;
  const KernelInfo* const rows = kernels(&count);
  py::list named;
  for (int i = 0; i < count; ++i) {
    py::dict row;
    row["name"] = rows[i].name;
    row["proof"] = rows[i].proof;
    named.append(row);
  }
  return named;
}

// Copies from any contiguous host memory.
void upload(Buffer& buffer, const py::buffer& host, std::uintptr_t stream) {
  const py::buffer_info info = host.request();
  const auto bytes = static_cast<std::size_t>(info.size * info.itemsize);
  if (bytes != buffer.bytes())
    throw py::value_error("the buffer has " + std::to_string(buffer.bytes()) + " bytes, and the array " +
                          std::to_string(bytes));
  try {
    copy_to_device(buffer.address(), info.ptr, bytes, buffer.device(), stream);
  } catch (...) {  // part of the copy may have started before a signal handler raised
    buffer.used_by(stream);
    throw;
  }
  buffer.used_by(stream);
}

void download(std::uintptr_t address, int device, const py::buffer& host, std::uintptr_t stream) {
  const py::buffer_info info = host.request(true);
  copy_to_host(info.ptr, address, static_cast<std::size_t>(info.size * info.itemsize), device, stream);
}

}  // namespace
}  // namespace regard::cuda

PYBIND11_MODULE(_cuda, module, pybind11::mod_gil_not_used()) {
  using namespace regard::cuda;
  module.attr("toolkit_version") = CUDART_VERSION;
  module.def("driver_version", &driver_version);
  module.def("device_count", &device_count);
  module.def("device", &device);
  module.def("compute_capability", &compute_capability);
  module.def("current_device", &current_device);
  module.def("device_of", &device_of);
  module.def("kernels", &kernel_rows);

  add_problem(module);

  py::class_<Buffer>(module, "Buffer", py::module_local())
      .def(py::init<std::size_t, int, std::uintptr_t>(), py::arg("bytes"), py::arg("device"), py::arg("stream"))
      .def_property_readonly("address", &Buffer::address)
      .def_property_readonly("bytes", &Buffer::bytes)
      .def_property_readonly("device", &Buffer::device)
      .def("used_by", &Buffer::used_by)
      .def("order", &Buffer::order)
      .def("exported", &Buffer::exported)
      .def("upload", &upload);
  module.def("download", &download);
  module.def("order_streams", &order_streams);
  module.def("synchronize", &synchronize);

  py::class_<ImportedTensor>(module, "ImportedTensor", py::module_local())
      .def(py::init<py::capsule>())
      .def_property_readonly("address", &ImportedTensor::address)
      .def_property_readonly("device", &ImportedTensor::device)
      .def_property_readonly("element", &ImportedTensor::element)
      .def_property_readonly("shape", &ImportedTensor::shape)
      .def_property_readonly("strides", &ImportedTensor::strides)
      .def_property_readonly("is_read_only", &ImportedTensor::is_read_only);
  module.def("export_tensor", &export_tensor);
}
