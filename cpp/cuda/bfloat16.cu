#include "kernel_rows.hpp"
#include "tensor_core_tile.hpp"

namespace regard::cuda {

Kernels bfloat16_kernels() {
  static const ForwardKernel rows[] = {
      REGARD_FORWARD_ROWS("bfloat16", TensorCoreTile<BFloat16>, 64, kRun, kRun),
      REGARD_FORWARD_ROWS("bfloat16", TensorCoreTile<BFloat16>, 128, kRun, kRun),
      REGARD_FORWARD_ROWS("bfloat16", TensorCoreTile<BFloat16>, 256, kRun, kEmulated),
  };
  return {rows,
          sizeof rows / sizeof *rows,
          {"merge chunks, bfloat16", kRun},
          &merge_chunks<BFloat16>};
}

}  // namespace regard::cuda
