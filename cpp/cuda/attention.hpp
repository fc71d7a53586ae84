// The interface of the CUDA code to its bindings.
#pragma once

#include <cuda_runtime_api.h>

#include "problem.hpp"

namespace regard::cuda {

// Device memory that a call needs in addition to its arrays: 0 unless keys are split among blocks.
// The split, and so the bits of the result, depends only on the problem's shapes.
std::size_t workspace_bytes(const AttentionProblem& problem);

// Starts the kernels on a stream and returns without waiting for them. Results are written to output and lse.
cudaError_t attention(const AttentionProblem& problem, void* workspace, cudaStream_t stream);

// A compiled kernel, and the extent of its testing: "compiled", "emulated on the CPU", or "run on
// GPU, date, commit".
struct KernelInfo {
  const char* name;
  const char* proof;
};
const KernelInfo* kernels(int* count);

}  // namespace regard::cuda
