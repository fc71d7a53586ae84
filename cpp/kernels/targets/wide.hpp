// The tiles, strips and vectors of x86_v4 on CPUs without AVX-512, for tests of code that depends
// on their sizes. Each vector consists of two AVX2 vectors, so this target is slow to compile and
// to run.
#pragma once

#define REGARD_WIDE
#define REGARD_TARGET_NAME wide
#include "../tile_shape.hpp"

namespace regard {
namespace {

constexpr Tuning kTuning = {
    .rows = 8,
    .vectors = 3,
    .registers = 32,
    .key_vectors = 4,
    .matmul_depth = 128,
};
using Float32 = TileShape<float, kTuning>;
using Float64 = TileShape<double, kTuning>;

}  // namespace
}  // namespace regard
