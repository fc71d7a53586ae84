// Stored elements of 16 and 8 bits, and vectors loaded from and stored to any type.
//
// float16: 1 sign, 5 exponent and 10 mantissa bits. bfloat16: the upper half of a float. Widening
// is exact. Narrowing rounds to nearest, ties to even, and keeps NaN a NaN.
#pragma once

#include "vec.hpp"

namespace regard {
namespace {

// May alias the lanes of any vector.
struct __attribute__((may_alias)) Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

// E4M3 times 2^-8: the bits match the bits of a float16, whose exponent bias is larger by 8. Scales
// compensate for this. Infinity does not exist. NaN, which only other engines store, is read as 480,
// and the scale of its row is NaN (kernels/kv_rows.hpp).
struct __attribute__((may_alias)) Float8 {
  std::uint8_t bits;
};
constexpr float kFloat8Unit = 0x1p-8f;

// The upper half of a float16.
struct Float8E5M2 {
  std::uint8_t bits;
};

// Two integers from 0 to 15 (problem/operand.hpp).
struct __attribute__((may_alias)) Nibbles {
  std::uint8_t two;
};

template <class From>
constexpr bool kIsFloat16 = false;
template <>
constexpr bool kIsFloat16<Float16> = true;
template <class From>
constexpr bool kIsFloat8 = false;
template <>
constexpr bool kIsFloat8<Float8> = true;
template <class From>
constexpr bool kIsNibbles = false;
template <>
constexpr bool kIsNibbles<Nibbles> = true;

REGARD_INLINE float float_of_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

REGARD_INLINE std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// ---- one element -----------------------------------------------------------------------------

REGARD_INLINE float widen(float value) { return value; }
REGARD_INLINE double widen(double value) { return value; }
REGARD_INLINE float widen(std::int8_t value) { return value; }

REGARD_INLINE float widen(BFloat16 value) {
  return float_of_bits(static_cast<std::uint32_t>(value.bits) << 16);
}

// The exponent bias differs by 112. A product with 2^112 corrects it, for subnormal numbers too.
REGARD_INLINE float widen(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = (value.bits & 0x7fffu) << 13;
  const bool is_special = magnitude >= 0x7c00u << 13;
  const bool is_nan = magnitude > 0x7c00u << 13;
  const std::uint32_t special = magnitude | 0x7f800000u | (is_nan ? 0x400000u : 0u);
  const std::uint32_t finite = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
  return float_of_bits(sign | (is_special ? special : finite));
}

REGARD_INLINE Float16 half_of(Float8 value) {
  return {static_cast<std::uint16_t>((value.bits & 0x80u) << 8 | (value.bits & 0x7fu) << 7)};
}
REGARD_INLINE float widen(Float8 value) { return widen(half_of(value)); }

REGARD_INLINE float widen(Float8E5M2 value) {
  return widen(Float16{static_cast<std::uint16_t>(value.bits << 8)});
}

REGARD_INLINE void narrow(float value, float& to) { to = value; }
REGARD_INLINE void narrow(double value, double& to) { to = value; }

REGARD_INLINE void narrow(float value, BFloat16& to) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : rounded);
}

REGARD_INLINE void narrow(float value, Float16& to) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal: 0.5 has the result's last place
    half = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  to.bits = static_cast<std::uint16_t>(sign | half);
}

// The E4M3 byte nearest to a number, ties to even, or 0x7f beyond 464. Numbers up to 464 round to
// 448, the largest.
REGARD_INLINE std::uint8_t float8_bits(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  std::uint32_t byte;
  if (!(magnitude <= 0x43e80000u))
    byte = 0x7fu;
  else if (magnitude < 0x3c800000u)  // subnormal: the last place of 2^14 is 2^-9
    byte = bits_of_float(float_of_bits(magnitude) + 0x1p14f) - 0x46800000u;
  else
    byte = (magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  return static_cast<std::uint8_t>(sign | byte);
}

// ---- a vector --------------------------------------------------------------------------------

typedef std::uint16_t HalfBits
    __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef std::uint32_t FloatBits __attribute__((vector_size(kVectorBytes)));

REGARD_INLINE Vec<float> load_halves(const BFloat16* from) {
  const HalfBits bits = *reinterpret_cast<const HalfBits*>(from);
  return reinterpret_cast<Vec<float>>(__builtin_convertvector(bits, FloatBits) << 16);
}

REGARD_INLINE void store_halves(BFloat16* to, Vec<float> value) {
  const FloatBits bits = reinterpret_cast<FloatBits>(value);
  const FloatBits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const FloatBits half = value == value ? rounded : (bits >> 16 | 0x40u);
  *reinterpret_cast<HalfBits*>(to) = __builtin_convertvector(half, HalfBits);
}

#if defined(REGARD_X86_V4)
REGARD_INLINE Vec<float> load_bytes(const std::int8_t* from) {
  return _mm512_maskz_cvtepi32_ps(
      0xffff,
      _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#elif defined(REGARD_X86_V3)
REGARD_INLINE Vec<float> load_bytes(const std::int8_t* from) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
#elif defined(REGARD_WIDE)
REGARD_INLINE Vec<float> load_bytes(const std::int8_t* from) {
  Vec<float> value{};
  for (int lane = 0; lane < kLanes<float>; ++lane) value[lane] = widen(from[lane]);
  return value;
}
#else
REGARD_INLINE Vec<float> load_bytes(const std::int8_t* from) {
  return Vec<float>{widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
}
#endif

#if defined(REGARD_X86_V4)
REGARD_INLINE Vec<float> load_halves(const Float16* from) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
REGARD_INLINE void store_halves(Float16* to, Vec<float> value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(REGARD_X86_V3)
REGARD_INLINE Vec<float> load_halves(const Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
REGARD_INLINE void store_halves(Float16* to, Vec<float> value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(REGARD_NEON)
REGARD_INLINE Vec<float> load_halves(const Float16* from) {
  const uint16x4_t bits = vld1_u16(reinterpret_cast<const std::uint16_t*>(from));
  return (Vec<float>)vcvt_f32_f16(vreinterpret_f16_u16(bits));
}
REGARD_INLINE void store_halves(Float16* to, Vec<float> value) {
  const uint16x4_t bits = vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value));
  vst1_u16(reinterpret_cast<std::uint16_t*>(to), bits);
}
#else
// Takes tens of instructions per number, so calls keep it out of unrolled loops. Not every source
// needs both functions.
[[maybe_unused]] REGARD_NOINLINE Vec<float> load_halves(const Float16* from) {
  Vec<float> value{};
  for (int lane = 0; lane < kLanes<float>; ++lane) value[lane] = widen(from[lane]);
  return value;
}
[[maybe_unused]] REGARD_NOINLINE void store_halves(Float16* to, Vec<float> value) {
  for (int lane = 0; lane < kLanes<float>; ++lane) narrow(value[lane], to[lane]);
}
#endif

// Mask for the bits of halves made from bytes: it removes the copies of the sign between the sign
// and the exponent.
constexpr std::int16_t kHalfOfFloat8 = static_cast<std::int16_t>(0xbf80u);

#if defined(REGARD_X86_V4)
REGARD_INLINE Vec<float> load_bytes(const Float8* from) {
  const __m256i bytes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm512_maskz_cvtph_ps(
      0xffff, _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16(kHalfOfFloat8)));
}
#elif defined(REGARD_X86_V3)
REGARD_INLINE Vec<float> load_bytes(const Float8* from) {
  const __m128i bytes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(bytes, 7), _mm_set1_epi16(kHalfOfFloat8)));
}
#else
REGARD_INLINE Vec<float> load_bytes(const Float8* from) {
  Float16 halves[kLanes<float>];
  for (int lane = 0; lane < kLanes<float>; ++lane) halves[lane] = half_of(from[lane]);
  return load_halves(halves);
}
#endif

REGARD_INLINE Vec<float> load_bytes(const Float8E5M2* from) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4), aligned(1), may_alias));
  const Bytes bytes = *reinterpret_cast<const Bytes*>(from);
  const HalfBits halves = __builtin_convertvector(bytes, HalfBits) << 8;
  return load_halves(reinterpret_cast<const Float16*>(&halves));
}

// For float64 calls with an operand of another type, which are rare. A call keeps the conversions
// out of unrolled loops.
template <class T, class From>
REGARD_NOINLINE Vec<T> load_widened(const From* from) {
  Vec<T> value{};
  for (int lane = 0; lane < kLanes<T>; ++lane) value[lane] = static_cast<T>(widen(from[lane]));
  return value;
}

template <class T, class From>
REGARD_INLINE Vec<T> load_as(const From* from) {
  if constexpr (sizeof(T) == sizeof(From)) {
    return load(from);
  } else if constexpr (sizeof(T) == 4 && sizeof(From) == 1) {
    return load_bytes(from);
  } else if constexpr (sizeof(T) == 4) {
    return load_halves(from);
  } else {
    return load_widened<T>(from);
  }
}

// Loads consecutive vectors.
template <class T, class From, int kCount>
REGARD_INLINE void load_all_as(const From* from, Vec<T> (&to)[kCount]) {
  int i = 0;
#if defined(REGARD_X86_V3)
  // Converts two vectors of float8 to halves together.
  if constexpr (sizeof(T) == 4 && kIsFloat8<From>)
#pragma GCC unroll 4
    for (; i + 1 < kCount; i += 2) {
      const __m256i bytes =
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * kLanes<T>)));
      const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16(kHalfOfFloat8));
      to[i] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      to[i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    }
#endif
#pragma GCC unroll 8
  for (; i < kCount; ++i) to[i] = load_as<T>(from + i * kLanes<T>);
}

template <class T, class To>
REGARD_INLINE void store_as(To* to, Vec<T> value) {
  if constexpr (sizeof(T) == sizeof(To))
    store(to, value);
  else
    store_halves(to, value);
}

}  // namespace
}  // namespace regard
