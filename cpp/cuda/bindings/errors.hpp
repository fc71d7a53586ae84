// Exceptions for failed calls of the CUDA runtime. They may be thrown without the GIL; pybind11
// converts them to RuntimeError and MemoryError.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>

namespace regard::cuda {

// MemoryError.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Throws if `call` returned an error. `bytes` is the size of a requested allocation.
inline void check(cudaError_t error, const char* call, std::size_t bytes = 0) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the runtime stores an error, and another library would mistake it for its own
  if (error == cudaErrorMemoryAllocation)
    throw OutOfMemory(std::string(call) + ": out of memory" +
                      (bytes ? ", " + std::to_string(bytes) + " bytes were asked for" : ""));
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error) + " (" +
                           cudaGetErrorName(error) + ")");
}

// Makes a device current, and restores the previous device at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) check(cudaSetDevice(device), "cudaSetDevice");
    is_changed_ = device != before_;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (is_changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool is_changed_ = false;
};

// Streams are passed as integers, as in the CUDA array protocols: 0 and 1 are the legacy default
// stream, 2 is the per-thread default stream, and any other number is a handle.
inline cudaStream_t stream_of(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }

}  // namespace regard::cuda
