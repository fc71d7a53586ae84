// Device memory, and copies between it and host arrays.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace regard::cuda {

// Allocates in stream order, on the current device. Throws OutOfMemory.
void* allocate(std::size_t bytes, int device, cudaStream_t stream);

// A stream-ordered allocation. It is freed after the work that `used_by` or `exported` registered.
class Buffer {
 public:
  Buffer(std::size_t bytes, int device, std::uintptr_t stream);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(data_); }
  std::size_t bytes() const { return bytes_; }
  int device() const { return device_; }

  // Registers that the work submitted to a stream so far reads or writes the memory.
  void used_by(std::uintptr_t stream);
  // Makes a stream wait for all work registered so far.
  void order(std::uintptr_t stream);
  // Registers that other libraries use the memory too, on unknown streams.
  void exported() { is_exported_ = true; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
  int device_;
  bool is_exported_ = false;
  cudaEvent_t used_ = nullptr;
};

// Makes `after` wait for the work submitted to `before` so far.
void order_streams(int device, std::uintptr_t before, std::uintptr_t after);

// Copies through pinned memory. The first returns as soon as the host memory has been read, the
// second when it has been written. Signal handlers run while they wait; otherwise the GIL is not
// held.
void copy_to_device(std::uintptr_t to, const void* from, std::size_t bytes, int device, std::uintptr_t stream);
void copy_to_host(void* to, std::uintptr_t from, std::size_t bytes, int device, std::uintptr_t stream);

// Waits until a stream has finished its submitted work.
void synchronize(int device, std::uintptr_t stream);

}  // namespace regard::cuda
