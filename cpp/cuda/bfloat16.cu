#include "kernel_rows.hpp"
#include "tensor_core_tile.hpp"

namespace regard::cuda {

Kernels bfloat16_kernels() {
  static const ForwardKernel rows[] = {
      REGARD_FORWARD_ROWS("bfloat16", TensorCoreTile<BFloat16>, 64),
      REGARD_FORWARD_ROWS("bfloat16", TensorCoreTile<BFloat16>, 128),
      REGARD_FORWARD_ROWS("bfloat16", TensorCoreTile<BFloat16>, 256),
  };
  return {rows,
          sizeof rows / sizeof *rows,
          {"merge chunks, bfloat16", "emulated on the CPU"},
          &merge_chunks<BFloat16>};
}

}  // namespace regard::cuda
