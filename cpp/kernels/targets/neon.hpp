// AArch64 Advanced SIMD: 24 accumulators of 32 registers.
#pragma once

#define REGARD_NEON
#define REGARD_TARGET_NAME neon
#include "../tile_shape.hpp"

namespace regard {
namespace {

constexpr Tuning kTuning = {
    .rows = 8,
    .vectors = 3,
    .registers = 32,
    .key_vectors = 4,
    .matmul_depth = 256,
};
using Float32 = TileShape<float, kTuning>;
using Float64 = TileShape<double, kTuning>;

}  // namespace
}  // namespace regard
