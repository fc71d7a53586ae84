// The instructions that every CPU of the architecture has. On x86-64 these are SSE2, without fma.
#pragma once

#define REGARD_BASELINE
#define REGARD_TARGET_NAME baseline
#define REGARD_TUNING {.registers = 16, .matmul_depth = 256}
#include "../tile_shape.hpp"
