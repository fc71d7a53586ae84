// AVX-512: 24 accumulators hide the latency of two fma units (4 cycles x 2) three times over.
#pragma once

#define REGARD_X86_V4
#define REGARD_TARGET_NAME x86_v4
#define REGARD_TUNING {.registers = 32, .matmul_depth = 128, .decode_vectors = 2}
#include "../tile_shape.hpp"
