// AVX-512: 24 accumulators hide the latency of two fma units (4 cycles x 2) three times over.
#pragma once

#define REGARD_X86_V4
#define REGARD_TARGET_NAME x86_v4
#include "../tile_shape.hpp"

namespace regard {
namespace {

constexpr Tuning kTuning = {
    .rows = 8,
    .vectors = 3,
    .registers = 32,
    .key_vectors = 4,
    .matmul_depth = 128,
    .decode_vectors_of_a_row = 2,
    .decode_vectors_of_rows = 2,
};
using Float32 = TileShape<float, kTuning>;
using Float64 = TileShape<double, kTuning>;

}  // namespace
}  // namespace regard
