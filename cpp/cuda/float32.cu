#include "kernel_rows.hpp"
#include "float32_tile.hpp"

namespace regard::cuda {

Kernels float32_kernels() {
  static const ForwardKernel rows[] = {
      REGARD_FORWARD_ROWS("float32", Float32Tile, 64),
      REGARD_FORWARD_ROWS("float32", Float32Tile, 128),
      REGARD_FORWARD_ROWS("float32", Float32Tile, 256),
  };
  return {rows,
          sizeof rows / sizeof *rows,
          {"merge chunks, float32", "emulated on the CPU"},
          &merge_chunks<Float32>};
}

}  // namespace regard::cuda
