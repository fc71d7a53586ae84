// AArch64 Advanced SIMD: 24 accumulators of 32 registers.
#define REGARD_VECTOR_BYTES 16
#include "../define_target.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 32;
using Float32 = TileShape<float, /*rows=*/8, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/8, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard

REGARD_DEFINE_TARGET(neon, Float32, Float64)
