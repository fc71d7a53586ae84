// The instructions that every CPU of the architecture has. On x86-64 these are SSE2, without fma.
#pragma once

#define REGARD_BASELINE
#define REGARD_TARGET_NAME baseline
#include "../tile_shape.hpp"

namespace regard {
namespace {

constexpr Tuning kTuning = {
    .rows = 4,
    .vectors = 3,
    .registers = 16,
    .key_vectors = 2,
    .matmul_depth = 256,
};
using Float32 = TileShape<float, kTuning>;
using Float64 = TileShape<double, kTuning>;

}  // namespace
}  // namespace regard
