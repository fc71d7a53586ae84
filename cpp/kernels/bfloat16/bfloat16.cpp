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
using DotOfTarget = PlainDotOfPairs;
constexpr const char* kPairsFeature = "avx2";
#else
using DotOfTarget = DotOfPairs;
#endif

constexpr Bfloat16Kernels bfloat16_kernels() {
  using Forward =
      AttentionForward<Float32, PairScores<Float32, DotOfTarget>, PairValues<Float32, DotOfTarget>>;
  return {.instruction = kPairsFeature,
          .attention = Forward::kernel(),
          .write_weights = Forward::write_weights,
          .backward = Backward<Float32, PairFactors<Float32, DotOfTarget>>::kernels()};
}

}  // namespace

constexpr PerScalar<Bfloat16Kernels> REGARD_TARGET_NAME::bfloat16 = {.float32 = bfloat16_kernels(),
                                                                     .float64 = {}};

}  // namespace regard

#else

constexpr regard::PerScalar<regard::Bfloat16Kernels> regard::REGARD_TARGET_NAME::bfloat16 = {};

#endif
