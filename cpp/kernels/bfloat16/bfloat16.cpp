#include REGARD_TARGET_HEADER

#include "../families.hpp"
#if defined(REGARD_X86_V4) || defined(REGARD_WIDE)
#include "../attention/forward.hpp"
#include "../backward/backward.hpp"
#include "factors.hpp"
#include "values.hpp"

namespace regard {
namespace {

#if defined(REGARD_WIDE)
// Plain arithmetic, so that complete calls can be tested on CPUs without the instruction.
using Dot = PlainDotOfPairs;
constexpr const char* kPairsFeature = "avx2";
#else
using Dot = DotOfPairs;
#endif

using Forward = AttentionForward<Float32, PairScores<Float32, Dot>, PairValues<Float32, Dot>>;

}  // namespace

constexpr PerScalar<Bfloat16Kernels> REGARD_TARGET_NAME::bfloat16 = {
    .float32 = {.instruction = kPairsFeature,
                .attention = Forward::kernel(),
                .write_weights = Forward::write_weights,
                .backward = Backward<Float32, PairFactors<Float32, Dot>>::kernels()},
    .float64 = {}};

}  // namespace regard

#else

constexpr regard::PerScalar<regard::Bfloat16Kernels> regard::REGARD_TARGET_NAME::bfloat16 = {};

#endif
