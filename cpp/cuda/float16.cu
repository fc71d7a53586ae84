#include "kernel_rows.hpp"
#include "tensor_core_tile.hpp"

REGARD_KERNELS(float16, TensorCoreTile<Float16>)
