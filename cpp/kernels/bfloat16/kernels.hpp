// The table of the bfloat16 family, for one way to multiply pairs.
#pragma once

#include "../attention/forward.hpp"
#include "../backward/backward.hpp"
#include "factors.hpp"
#include "scores.hpp"

namespace regard {
namespace {

template <class Dot>
constexpr Bfloat16Kernels bfloat16_kernels(const char* instruction) {
  using Forward = AttentionForward<Float32, PairScores<Float32, Dot>, PairValues<Float32, Dot>>;
  return {.instruction = instruction,
          .attention = Forward::kernel(),
          .backward = Backward<Float32, PairFactors<Float32, Dot>>::kernels()};
}

}  // namespace
}  // namespace regard
