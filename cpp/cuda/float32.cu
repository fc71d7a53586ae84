#include "kernel_rows.hpp"
#include "float32_tile.hpp"

namespace regard::cuda {

Kernels float32_kernels() {
  static const ForwardKernel rows[] = {
      REGARD_FORWARD_ROWS("float32", Float32Tile, 64, kRun, kRun),
      REGARD_FORWARD_ROWS("float32", Float32Tile, 128, kRun, kRun),
      REGARD_FORWARD_ROWS("float32", Float32Tile, 256, kRun, kEmulated),
  };
  return {rows,
          sizeof rows / sizeof *rows,
          {"merge chunks, float32", kRun},
          &merge_chunks<Float32>};
}

}  // namespace regard::cuda
