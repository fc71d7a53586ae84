// AVX2 and FMA: 12 accumulators, 3 of the right operand and 1 broadcast fill the 16 registers.
#pragma once

#define REGARD_X86_V3
#define REGARD_TARGET_NAME x86_v3
#define REGARD_TUNING {.registers = 16, .matmul_depth = 256, .decode_vectors = 2}
#include "../tile_shape.hpp"
