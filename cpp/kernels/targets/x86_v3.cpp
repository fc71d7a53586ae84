// AVX2 and FMA: 12 accumulators, 3 of the right operand and 1 broadcast fill the 16 registers.
#define REGARD_VECTOR_BYTES 32
#include "../define_target.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 16;
using Float32 = TileShape<float, /*rows=*/4, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/4, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard

REGARD_DEFINE_TARGET(x86_v3, Float32, Float64)
