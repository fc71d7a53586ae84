// Calls of CUDA's runtime that fail, as exceptions. They may be thrown without the GIL; pybind11 makes
// RuntimeError and MemoryError of them.
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

// Throws if `call` returned an error. `bytes` is what an allocation asked for.
inline void check(cudaError_t error, const char* call, std::size_t bytes = 0) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the runtime keeps an error, and another library would take it for its own
  if (error == cudaErrorMemoryAllocation)
    throw OutOfMemory(std::string(call) + ": out of memory" +
                      (bytes ? ", " + std::to_string(bytes) + " bytes were asked for" : ""));
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error) + " (" +
                           cudaGetErrorName(error) + ")");
}

// Makes a device current, and the one before it again at the end.
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

// Streams are passed as integers, as in CUDA's array protocols: 0 and 1 are the legacy default stream, 2 is
// the default stream of each thread, and any other number is a handle.
inline cudaStream_t stream_of(std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); }

}  // namespace regard::cuda
