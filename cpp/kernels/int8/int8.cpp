#include REGARD_TARGET_HEADER

#include "../families.hpp"
#if defined(REGARD_X86_V3) || defined(REGARD_X86_V4) || defined(REGARD_WIDE)
#include "../attention/forward.hpp"
#include "scores.hpp"

namespace regard {
namespace {

constexpr Int8Kernels int8_kernels() {
  using Forward = AttentionForward<Float32, QuadScores<Float32>>;
  using Keys = QuantizedKeys<Float32>;
  return {
      .instruction = kQuadsFeature,
      .attention = Forward::kernel(),
      .write_weights = Forward::write_weights,
      .quantizer = {.bytes = Keys::bytes,
                    .begin = Keys::begin,
                    .add_to_mean = Keys::add_to_mean,
                    .quantize = Keys::quantize},
  };
}

}  // namespace

constexpr PerScalar<Int8Kernels> REGARD_TARGET_NAME::int8 = {.float32 = int8_kernels(),
                                                             .float64 = {}};

}  // namespace regard

#else

constexpr regard::PerScalar<regard::Int8Kernels> regard::REGARD_TARGET_NAME::int8 = {};

#endif
