// Enqueues the emulated kernels in stream order, as a GPU does. This header takes precedence over
// the emulation's own header, which runs them at once.
#pragma once
#pragma GCC system_header  // #include_next is not standard C++

#define launch launch_at_once
#include_next <emulated_launch.hpp>
#undef launch

#include "control.hpp"

namespace regard::cuda {

inline cudaError_t launch(Kernel kernel, std::uint32_t blocks, int shared_bytes, cudaStream_t stream,
                          const Arguments& arguments) {
  if (shared_bytes > kMostSharedBytes) return cudaErrorInvalidValue;
  return emulated::enqueue_launch(
      stream, [=] { return launch_at_once(kernel, blocks, shared_bytes, stream, arguments); });
}

}  // namespace regard::cuda
