// The tiles, strips and vectors of x86_v4 on CPUs without AVX-512, for tests of code that depends
// on their sizes. Each vector consists of two AVX2 vectors, so this target is slow to compile and
// to run.
#pragma once

#define REGARD_WIDE
#define REGARD_TARGET_NAME wide
#define REGARD_TUNING {.registers = 32, .matmul_depth = 128}
#include "../tile_shape.hpp"
