// What tests ask of the emulated runtime, and tell it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace regard::cuda::emulated {

// Puts work in the order of a stream: it is done when somebody waits for it, and not before.
void enqueue(cudaStream_t stream, std::function<void()> work);

// The same for a kernel. A test may let it fail, as "launch".
cudaError_t enqueue_launch(cudaStream_t stream, std::function<cudaError_t()> kernel);

}  // namespace regard::cuda::emulated

#define REGARD_FOR_TESTS extern "C" __attribute__((visibility("default")))

// Sets the number of devices, their compute capability, and the driver's version, where 0 means no driver.
REGARD_FOR_TESTS void emulated_cuda_machine(int devices, int major, int minor, int driver);
// The call of this name fails with an error, after `calls` that do not.
REGARD_FOR_TESTS void emulated_cuda_fail(const char* name, int calls, int error);
// While it is stalled, no event is ready.
REGARD_FOR_TESTS void emulated_cuda_stall(bool is_stalled);
// What has been allocated or created and not been freed, all streams having done their work.
REGARD_FOR_TESTS std::size_t emulated_cuda_device_bytes();
REGARD_FOR_TESTS int emulated_cuda_events();
// How many launches there have been.
REGARD_FOR_TESTS int emulated_cuda_launches();
