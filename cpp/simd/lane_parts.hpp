// 32-bit lanes that hold two 16-bit numbers or four 8-bit numbers each: rows of narrow numbers are
// transposed as if they were float32, and split afterwards.
#pragma once

#include <utility>

#include "half.hpp"

namespace regard {
namespace {

template <class From>
constexpr int kLaneParts = 4 / static_cast<int>(sizeof(From));

// Byte kByte of every lane as an integer times kByteOnTop: the byte is the top byte, with zeros
// below.
constexpr double kByteOnTop = 1 << 24;

template <int kByte>
REGARD_INLINE Mask<float> byte_on_top(Mask<float> lanes) {
  constexpr auto kTop = static_cast<std::int32_t>(0xff000000u);
  if constexpr (kByte == 3) return lanes & kTop;
#if defined(REGARD_X86_V4) || defined(REGARD_X86_V3)
  // One shuffle of 16 bytes, in which 0x80 yields a zero, instead of two shifts.
  constexpr int kZeros = 0x808080;
  const __m128i from = _mm_setr_epi32(kByte << 24 | kZeros, (kByte + 4) << 24 | kZeros,
                                      (kByte + 8) << 24 | kZeros, (kByte + 12) << 24 | kZeros);
#if defined(REGARD_X86_V4)
  return reinterpret_cast<Mask<float>>(_mm512_shuffle_epi8(
      reinterpret_cast<__m512i>(lanes), _mm512_maskz_broadcast_i32x4(0xffff, from)));
#else
  return reinterpret_cast<Mask<float>>(
      _mm256_shuffle_epi8(reinterpret_cast<__m256i>(lanes), _mm256_broadcastsi128_si256(from)));
#endif
#else
  return (lanes << (24 - 8 * kByte)) & kTop;
#endif
}

// All first halves, then all second halves.
template <std::size_t... kPart>
REGARD_INLINE Mask<float> halves_together(Mask<float> lanes, std::index_sequence<kPart...>) {
  typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes)));
  constexpr std::size_t kCount = sizeof...(kPart);
  const Halves halves = reinterpret_cast<Halves>(lanes);
  return reinterpret_cast<Mask<float>>(__builtin_shufflevector(
      halves, halves, static_cast<int>(2 * kPart % kCount + 2 * kPart / kCount)...));
}

// Prepares lanes for `part_of`.
template <class From>
REGARD_INLINE Mask<float> parts_of(Mask<float> lanes) {
  if constexpr (!kIsFloat16<From>) return lanes;
  return halves_together(lanes, std::make_index_sequence<2 * kLanes<float>>());
}

// Part kPart of every lane as a float32. int8 is multiplied by kByteOnTop.
template <class From, int kPart>
REGARD_INLINE Vec<float> part_of(const Mask<float>& parts) {
  if constexpr (sizeof(From) == 1) {
    return __builtin_convertvector(byte_on_top<kPart>(parts), Vec<float>);
  } else if constexpr (kIsFloat16<From>) {
    return load_as<float>(reinterpret_cast<const From*>(&parts) + kPart * kLanes<float>);
  } else {
    return reinterpret_cast<Vec<float>>(kPart == 0 ? parts << 16 : parts & -65536);
  }
}

// The first half of each lane of `lower`, and the second half of each lane of `upper`.
REGARD_INLINE Mask<float> halves_of_two(Mask<float> lower, Mask<float> upper) {
#if defined(REGARD_X86_V3)
  return reinterpret_cast<Mask<float>>(_mm256_blend_epi16(reinterpret_cast<__m256i>(lower),
                                                          reinterpret_cast<__m256i>(upper), 0xaa));
#else
  return (lower & 0xffff) | (upper & -65536);
#endif
}

// Converts float8 bytes to halves, which interleaves the lanes of two vectors: kPart of lane 0 of
// `even`, of lane 0 of `odd`, of lane 1 of `even`, and so on.
template <int kPart>
REGARD_INLINE void parts_of_float8(const Mask<float>& even, const Mask<float>& odd,
                                   Vec<float>& first, Vec<float>& second) {
  typedef std::int16_t Halves __attribute__((vector_size(kVectorBytes)));
  const Mask<float> two =
      kPart < 2 ? halves_of_two(even, odd << 16) : halves_of_two(even >> 16, odd);
  const Halves bytes = reinterpret_cast<Halves>(two);
  const Halves on_top = kPart % 2 == 0 ? bytes << 8 : bytes;
  // Removes the sign's copy in the exponent's highest bit, and the bits from another byte.
  const Halves halves = on_top >> 1 & kHalfOfFloat8;
  const auto* from = reinterpret_cast<const Float16*>(&halves);
  first = load_halves(from);
  second = load_halves(from + kLanes<float>);
}

// Number of vectors whose lanes are interleaved when parts are taken from them.
template <class From>
constexpr int kMet = kIsFloat8<From> ? 2 : 1;

// Part kPart of the lanes of kMet vectors, which are `stride` apart, as float32.
template <class From, int kPart>
REGARD_INLINE void parts_of_vectors(const Mask<float>* lanes, int stride,
                                    Vec<float> (&parts)[kMet<From>]) {
  if constexpr (kMet<From> == 2)
    parts_of_float8<kPart>(lanes[0], lanes[stride], parts[0], parts[1]);
  else
    parts[0] = part_of<From, kPart>(lanes[0]);
}

}  // namespace
}  // namespace regard
