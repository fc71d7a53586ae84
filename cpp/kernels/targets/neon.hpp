// AArch64 Advanced SIMD: 24 accumulators of 32 registers.
#pragma once

#define REGARD_NEON
#define REGARD_TARGET_NAME neon
#define REGARD_TUNING {.registers = 32, .matmul_depth = 256}
#include "../tile_shape.hpp"
