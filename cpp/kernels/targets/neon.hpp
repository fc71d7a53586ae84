// AArch64 Advanced SIMD: 24 accumulators of 32 registers.
#pragma once

#define REGARD_NEON
#define REGARD_TARGET_NAME neon
#include "../tile_shape.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 32;
using Float32 = TileShape<float, /*rows=*/8, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/8, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard
