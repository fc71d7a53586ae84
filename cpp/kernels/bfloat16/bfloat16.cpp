#include REGARD_TARGET_HEADER

#include "../families.hpp"
#if defined(REGARD_X86_V4)
#include "../attention/forward.hpp"
#include "../backward/backward.hpp"
#include "factors.hpp"
#include "values.hpp"

namespace regard {
namespace {

using Forward =
    AttentionForward<Float32, PairScores<Float32, DotOfPairs>, PairValues<Float32, DotOfPairs>>;

}  // namespace

constexpr PerScalar<Bfloat16Kernels> REGARD_TARGET_NAME::bfloat16 = {
    .float32 = {.instruction = kPairsFeature,
                .attention = Forward::kernel(),
                .write_weights = Forward::write_weights,
                .backward = Backward<Float32, PairFactors<Float32, DotOfPairs>>::kernels()},
    .float64 = {}};

}  // namespace regard

#else

constexpr regard::PerScalar<regard::Bfloat16Kernels> regard::REGARD_TARGET_NAME::bfloat16 = {};

#endif
