#include REGARD_TARGET_HEADER

#include "../attention/forward.hpp"
#include "../families.hpp"
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

constexpr Int8Attention by_feature() {
#ifdef REGARD_DOT
  return attention_by<DotScores<Float32>>(kDotFeature);
#else
  return {};
#endif
}

constexpr Int8Attention by_target() {
#ifdef REGARD_PAIRS
  return attention_by<PairScores<Float32>>("pmaddwd");
#else
  return attention_by<FloatScores<Float32>>(nullptr);
#endif
}

using Keys = QuantisedKeys<Float32>;

}  // namespace

constexpr Int8Kernels REGARD_TARGET_NAME::int8 = {
    .by_feature = by_feature(),
    .by_target = by_target(),
    .quantiser = {.bytes = Keys::bytes,
                  .begin = Keys::begin,
                  .add_to_mean = Keys::add_to_mean,
                  .quantise = Keys::quantise},
};

}  // namespace regard
