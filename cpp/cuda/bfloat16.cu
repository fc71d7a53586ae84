#include "kernel_rows.hpp"
#include "tensor_core_tile.hpp"

REGARD_KERNELS(bfloat16, TensorCoreTile<BFloat16>)
