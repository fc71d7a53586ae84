// The interface by which tests control and query the emulated runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace regard::cuda::emulated {

// Enqueues work in stream order: it runs when something waits for it, and not before.
void enqueue(cudaStream_t stream, std::function<void()> work);

// The same for a kernel. A test may make it fail, as "launch".
cudaError_t enqueue_launch(cudaStream_t stream, std::function<cudaError_t()> kernel);

}  // namespace regard::cuda::emulated

#define REGARD_FOR_TESTS extern "C" __attribute__((visibility("default")))

// Sets the number of devices, their compute capability, and the driver's version (0 means no
// driver).
REGARD_FOR_TESTS void emulated_cuda_machine(int devices, int major, int minor, int driver);
// Makes the call of this name fail with an error, after `calls` successful calls.
REGARD_FOR_TESTS void emulated_cuda_fail(const char* name, int calls, int error);
// While the runtime is stalled, no event is ready.
REGARD_FOR_TESTS void emulated_cuda_stall(bool is_stalled);
// Return the device bytes and events that have been allocated and not freed, after all streams have
// finished their work.
REGARD_FOR_TESTS std::size_t emulated_cuda_device_bytes();
REGARD_FOR_TESTS int emulated_cuda_events();
// Returns the number of launches so far.
REGARD_FOR_TESTS int emulated_cuda_launches();
