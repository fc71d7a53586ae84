#include REGARD_TARGET_HEADER

#include "../attention/forward.hpp"
#include "../targets/families.hpp"
#include "scores.hpp"

namespace regard {
namespace {

template <class Scores>
constexpr Int8Attention attention_by(const char* instruction) {
  using Forward = AttentionForward<Float32, Scores>;
  return {.kernel = Forward::kernel(),
          .write_weights = Forward::write_weights,
          .instruction = instruction};
}

constexpr Int8Attention by_instruction() {
#ifdef REGARD_DOT
  return attention_by<DotScores<Float32>>(kDotFeature);
#else
  return {};
#endif
}

using Keys = QuantisedKeys<Float32>;

}  // namespace

constexpr Int8Kernels REGARD_TARGET_NAME::int8 = {
    .by_instruction = by_instruction(),
    .by_floats = attention_by<FloatScores<Float32>>(nullptr),
    .quantiser = {.bytes = Keys::bytes,
                  .begin = Keys::begin,
                  .add_to_mean = Keys::add_to_mean,
                  .quantise = Keys::quantise},
};

}  // namespace regard
