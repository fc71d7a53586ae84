// What every CPU of the architecture runs; on x86-64 that is SSE2, without fma.
#pragma once

#define REGARD_BASELINE
#define REGARD_TARGET_NAME baseline
#include "../tile_shape.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 16;
using Float32 = TileShape<float, /*rows=*/4, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/4, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard
