// AVX2 and FMA: 12 accumulators, 3 of the right operand and 1 broadcast fill the 16 registers.
#pragma once

#define REGARD_X86_V3
#define REGARD_TARGET_NAME x86_v3
#include "../tile_shape.hpp"

namespace regard {
namespace {

constexpr Tuning kTuning = {
    .rows = 4,
    .vectors = 3,
    .registers = 16,
    .key_vectors = 2,
    .matmul_depth = 256,
    .decode_vectors_of_a_row = 2,
    .decode_vectors_of_rows = 2,
};
using Float32 = TileShape<float, kTuning>;
using Float64 = TileShape<double, kTuning>;

}  // namespace
}  // namespace regard
