// Products of bfloat16 numbers, two per 32-bit lane: the first number is in the low half.
//
//   dot_pairs(sum, a, b) = fma(a.low, b.low, fma(a.high, b.high, sum))
//
// as the instruction vdpbf16ps computes it: both fma operations round to nearest even, subnormal
// inputs are read as 0, and subnormal results become 0, whatever the thread's floating-point mode
// is.
#pragma once

#include "half.hpp"

namespace regard {
namespace {

// The numbers in the low halves and in the high halves.
REGARD_INLINE Vec<float> low_of_pairs(Vec<float> pairs) {
  return as_value<float>(as_bits<float>(pairs) << 16);
}
REGARD_INLINE Vec<float> high_of_pairs(Vec<float> pairs) {
  return as_value<float>(as_bits<float>(pairs) & static_cast<std::int32_t>(0xffff0000u));
}

// Rounds two vectors to bfloat16, to nearest even, and combines them as the halves of one vector.
REGARD_INLINE Vec<float> pairs_of(Vec<float> low, Vec<float> high) {
  const auto rounded = [](Vec<float> value) {
    const FloatBits bits = reinterpret_cast<FloatBits>(value);
    const FloatBits nearest = bits + 0x7fffu + (bits >> 16 & 1u);
    return value == value ? nearest : (bits | 0x400000u);
  };
  return reinterpret_cast<Vec<float>>(rounded(low) >> 16 | (rounded(high) & 0xffff0000u));
}

// Replaces subnormal numbers by 0.
REGARD_INLINE Vec<float> without_subnormals(Vec<float> value) {
  const Vec<float> magnitude = as_value<float>(as_bits<float>(value) & 0x7fffffff);
  const Vec<float> zero =
      as_value<float>(as_bits<float>(value) & static_cast<std::int32_t>(0x80000000u));
  return select<float>(magnitude < broadcast(__FLT_MIN__), zero, value);
}

// Computed in arithmetic that every target has.
struct PlainDotOfPairs {
  REGARD_INLINE Vec<float> add(Vec<float> sum, Vec<float> a, Vec<float> b) {
    const auto product = [](Vec<float> x, Vec<float> y, Vec<float> z) {
      return without_subnormals(fma(without_subnormals(x), without_subnormals(y), z));
    };
    return product(low_of_pairs(a), low_of_pairs(b),
                   product(high_of_pairs(a), high_of_pairs(b), without_subnormals(sum)));
  }
};

#if defined(REGARD_X86_V4)
// The feature that the CPU must have in addition to the target's features, as in integer_dots.hpp.
constexpr const char* kPairsFeature = "avx512_bf16";

struct DotOfPairs {
  REGARD_INLINE Vec<float> add(Vec<float> sum, Vec<float> a, Vec<float> b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};
#endif

}  // namespace
}  // namespace regard
