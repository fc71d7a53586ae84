#include "kernel_rows.hpp"
#include "tensor_core_tile.hpp"

namespace regard::cuda {

Kernels float16_kernels() {
  static const ForwardKernel rows[] = {
      REGARD_FORWARD_ROWS("float16", TensorCoreTile<Float16>, 64, kRun, kRun),
      REGARD_FORWARD_ROWS("float16", TensorCoreTile<Float16>, 128, kRun, kRun),
      REGARD_FORWARD_ROWS("float16", TensorCoreTile<Float16>, 256, kEmulated, kRun),
  };
  return {rows,
          sizeof rows / sizeof *rows,
          {"merge chunks, float16", kRun},
          &merge_chunks<Float16>};
}

}  // namespace regard::cuda
