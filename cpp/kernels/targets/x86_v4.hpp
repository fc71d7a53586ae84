// AVX-512: 24 accumulators hide the latency of two fma units (4 cycles x 2) three times over.
#pragma once

#define REGARD_X86_V4
#define REGARD_TARGET_NAME x86_v4
#include "../tile_shape.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 32;
using Float32 = TileShape<float, /*rows=*/8, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/8, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard
