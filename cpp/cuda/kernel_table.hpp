// The compiled kernels, by element type. Each type has a separate source, so that the sources
// compile in parallel.
#pragma once

#include <cstddef>

#include "attention.hpp"
#include "launch.hpp"

namespace regard::cuda {

struct ForwardKernel {
  KernelInfo info;
  std::int32_t most_value_dim;
  bool has_options;  // a cap, ALiBi, a bias or a mask
  Kernel kernel;
  int (*shared_bytes)(int head_dim);
};

struct Kernels {
  const ForwardKernel* forward;  // by most_value_dim, kernels without options first
  int forward_count;
  KernelInfo merge_chunks_info;
  Kernel merge_chunks;
};

Kernels float16_kernels();
Kernels bfloat16_kernels();
Kernels float32_kernels();

}  // namespace regard::cuda
