// What every CPU of the architecture runs; on x86-64 that is SSE2, without fma.
#define REGARD_VECTOR_BYTES 16
#include "../define_target.hpp"

namespace regard {
namespace {
constexpr int kRegisters = 16;
using Float32 = TileShape<float, /*rows=*/4, /*vectors=*/3, kRegisters>;
using Float64 = TileShape<double, /*rows=*/4, /*vectors=*/3, kRegisters>;
}  // namespace
}  // namespace regard

REGARD_DEFINE_TARGET(baseline, Float32, Float64)
