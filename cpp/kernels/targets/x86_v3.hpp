// AVX2 and FMA: 12 accumulators, 3 of the right operand and 1 broadcast fill the 16 registers.
#pragma once

#define REGARD_X86_V3
#define REGARD_TARGET_NAME x86_v3
#include "../tile_shape.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 16;
using Float32 = TileShape<float, /*rows=*/4, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/4, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard
