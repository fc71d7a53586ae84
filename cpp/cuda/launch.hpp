// Starts a kernel on a stream. The tests replace this header with another one that runs the kernel.
#pragma once

#ifndef __CUDACC__
#include <emulated_launch.hpp>
#else

#include <cuda_runtime.h>

#include "arguments.hpp"

namespace regard::cuda {

using Kernel = void (*)(Arguments);

inline cudaError_t launch(Kernel kernel, std::uint32_t blocks, int shared_bytes, cudaStream_t stream,
                          Arguments arguments) {
  // More than a kernel may use without a request.
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  void* parameters[] = {&arguments};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(kThreads), parameters,
                          static_cast<std::size_t>(shared_bytes), stream);
}

}  // namespace regard::cuda

#endif
