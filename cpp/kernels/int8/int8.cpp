#include REGARD_TARGET_HEADER

#include "../attention/forward.hpp"
#include "../families.hpp"
#include "scores.hpp"

namespace regard {
namespace {

constexpr Int8Kernels int8_kernels() {
#ifdef REGARD_DOT
  using Forward = AttentionForward<Float32, DotScores<Float32>>;
  using Keys = QuantisedKeys<Float32>;
  return {.instruction = kDotFeature,
          .attention = Forward::kernel(),
          .write_weights = Forward::write_weights,
          .quantiser = {.bytes = Keys::bytes,
                        .begin = Keys::begin,
                        .add_to_mean = Keys::add_to_mean,
                        .quantise = Keys::quantise}};
#else
  return {};
#endif
}

}  // namespace

constexpr Int8Kernels REGARD_TARGET_NAME::int8 = int8_kernels();

}  // namespace regard
