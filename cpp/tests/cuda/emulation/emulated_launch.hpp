// Runs a kernel in place of cpp/cuda/launch.hpp, which would start it.
#pragma once

#include <cuda_runtime_api.h>

#include <arguments.hpp>

#include "block.hpp"

namespace regard::cuda {

using Kernel = void (*)(Arguments);

// The seed of the order in which threads and blocks run, and of the arrival of copies.
inline unsigned launch_seed = 0;

// Every device from compute capability 8.0 on allows a block this much.
constexpr int kMostSharedBytes = 99 * 1024;

inline cudaError_t launch(Kernel kernel, std::uint32_t blocks, int shared_bytes, cudaStream_t,
                          const Arguments& arguments) {
  if (shared_bytes > kMostSharedBytes) return cudaErrorInvalidValue;
  emulation::run([&] { kernel(arguments); }, blocks, kThreads, static_cast<std::size_t>(shared_bytes),
                 launch_seed++);
  return cudaSuccess;
}

}  // namespace regard::cuda
