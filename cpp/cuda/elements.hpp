// The element types, and their numbers as bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "problem.hpp"

#ifdef __CUDACC__
#define REGARD_DEVICE __device__ __forceinline__
#define REGARD_BOTH __host__ __device__ __forceinline__
#else
#define REGARD_DEVICE inline
#define REGARD_BOTH inline
#endif

namespace regard::cuda {

struct Float16 {
  static constexpr Element kElement = Element::float16;
  static constexpr int kBytes = 2;
  static constexpr std::uint32_t kExponent = 0x7C00;
};

struct BFloat16 {
  static constexpr Element kElement = Element::bfloat16;
  static constexpr int kBytes = 2;
  static constexpr std::uint32_t kExponent = 0x7F80;
};

struct Float32 {
  static constexpr Element kElement = Element::float32;
  static constexpr int kBytes = 4;
  static constexpr std::uint32_t kExponent = 0x7F800000;
};

REGARD_BOTH float float_of_bits(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

REGARD_BOTH std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

REGARD_BOTH float float_of(BFloat16, std::uint32_t bits) {
  return float_of_bits(bits << 16);
}

// Its exponent and fraction, read as a float32, represent a number that is 2^112 times too small,
// subnormal numbers included.
REGARD_BOTH float float_of(Float16, std::uint32_t bits) {
  const std::uint32_t magnitude = (bits & 0x7FFF) << 13;
  const float finite = float_of_bits(magnitude) * 0x1p112f;
  const bool is_finite = (bits & Float16::kExponent) != Float16::kExponent;
  const std::uint32_t sign = (bits & 0x8000) << 16;
  return float_of_bits(sign | (is_finite ? bits_of_float(finite) : magnitude | 0x7F800000u));
}

REGARD_BOTH float float_of(Float32, std::uint32_t bits) { return float_of_bits(bits); }

// Element `i` of a word, moved to its lowest bits.
template <class T>
REGARD_BOTH std::uint32_t element_of(std::uint32_t word, int i) {
  return T::kBytes == 4 ? word : word >> (i * 16) & 0xFFFF;
}

// Whether an element is infinite or NaN.
template <class T>
REGARD_BOTH bool is_special(std::uint32_t element) {
  return (element & T::kExponent) == T::kExponent;
}

constexpr float kInfinity = __builtin_huge_valf();
constexpr float kLargest = 3.402823466e38f;

// The weight of a hidden key, and the sum of weights of a row before its first visible key. The
// weight of a visible key has no sign, so the sign of a sum of weights shows whether the row has
// seen a key.
constexpr float kNothing = -0.0f;
REGARD_BOTH bool is_nothing(float weight) { return bits_of_float(weight) == 0x80000000u; }

}  // namespace regard::cuda
