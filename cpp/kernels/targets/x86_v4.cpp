// AVX-512: 24 accumulators hide the latency of two fma units (4 cycles x 2) three times over.
#define REGARD_VECTOR_BYTES 64
#include "../define_target.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 32;
using Float32 = TileShape<float, /*rows=*/8, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/8, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard

REGARD_DEFINE_TARGET(x86_v4, Float32, Float64)
