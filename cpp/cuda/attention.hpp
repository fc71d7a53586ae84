// What the CUDA room offers to its bindings.
#pragma once

#include <cuda_runtime_api.h>

#include "problem.hpp"

namespace regard::cuda {

// Memory of the device that a call needs beside its arrays: 0 unless keys are split among blocks. It depends
// on the problem's shapes alone, and so do the bits of the result.
std::size_t workspace_bytes(const AttentionProblem& problem);

// Starts the kernels on a stream and returns without waiting for them. Results are written to output and lse.
cudaError_t attention(const AttentionProblem& problem, void* workspace, cudaStream_t stream);

// A kernel as it is compiled, and how far it has been proven: "compiled", "emulated on the CPU", or
// "run on GPU, date, commit".
struct KernelInfo {
  const char* name;
  const char* proof;
};
const KernelInfo* kernels(int* count);

}  // namespace regard::cuda
