#include "float32_tile.hpp"
#include "kernel_rows.hpp"

REGARD_KERNELS(float32, Float32Tile)
