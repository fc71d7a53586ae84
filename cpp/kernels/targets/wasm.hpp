// WebAssembly with 128-bit SIMD: 12 accumulators of the 16 registers that x86-64 has for it.
#pragma once

#define REGARD_WASM
#define REGARD_TARGET_NAME wasm
#define REGARD_TUNING {.registers = 16, .matmul_depth = 256}
#include "../tile_shape.hpp"
