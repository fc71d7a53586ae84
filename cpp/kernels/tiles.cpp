// The families that compute tiles of scores with queries in lanes: one source, so that what they
// share is compiled once for a target (docs/lab-notes.md).
#include REGARD_TARGET_HEADER

#include "attention/forward.hpp"
#include "backward/backward.hpp"
#include "families.hpp"
#include "selection/selection.hpp"
#include "summary/summary.hpp"
#include "tangent/tangent.hpp"
#if defined(REGARD_X86_V3) || defined(REGARD_X86_V4) || defined(REGARD_WIDE)
#include "int8/scores.hpp"
#endif
#if defined(REGARD_X86_V4) || defined(REGARD_WIDE)
#include "bfloat16/kernels.hpp"
#endif

namespace regard::REGARD_TARGET_NAME {

constexpr PerScalar<AttentionKernels> attention = {AttentionForward<Float32>::kernels(),
                                                   AttentionForward<Float64>::kernels()};
constexpr PerScalar<BackwardKernels> backward = {Backward<Float32>::kernels(),
                                                 Backward<Float64>::kernels()};
constexpr PerScalar<SelectionKernels> selection = {Selection<Float32>::kernels(),
                                                   Selection<Float64>::kernels()};
constexpr PerScalar<SummaryKernels> summary = {Summary<Float32>::kernels(),
                                               Summary<Float64>::kernels()};
constexpr PerScalar<TangentKernels> tangent = {Tangent<Float32>::kernels(),
                                               Tangent<Float64>::kernels()};

#if defined(REGARD_X86_V3) || defined(REGARD_X86_V4) || defined(REGARD_WIDE)
constexpr PerScalar<Int8Kernels> int8 = {
    .float32 = {.instruction = kQuadsFeature,
                .attention = AttentionForward<Float32, QuadScores<Float32>>::kernel(),
                .quantizer = QuantizedKeys<Float32>::quantizer()},
    .float64 = {}};
#else
constexpr PerScalar<Int8Kernels> int8 = {};
#endif

#if defined(REGARD_X86_V4)
constexpr PerScalar<Bfloat16Kernels> bfloat16 = {bfloat16_kernels<DotOfPairs>(kPairsFeature), {}};
#elif defined(REGARD_WIDE)
// Plain arithmetic, so that complete calls can be tested on CPUs without the instruction.
constexpr PerScalar<Bfloat16Kernels> bfloat16 = {bfloat16_kernels<PlainDotOfPairs>("avx2"), {}};
#else
constexpr PerScalar<Bfloat16Kernels> bfloat16 = {};
#endif

}  // namespace regard::REGARD_TARGET_NAME
