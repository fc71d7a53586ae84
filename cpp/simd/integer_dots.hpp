// Products of integers in 32-bit lanes: two of 16 bits, or four of 8 bits.
#pragma once

#include "vec.hpp"

namespace regard {
namespace {

// sum[lane] += the two products of a and b.
REGARD_INLINE void add_dot_of_pairs(Mask<float>& sum, Mask<float> a, Mask<float> b) {
#if defined(REGARD_X86_V4)
  sum += reinterpret_cast<Mask<float>>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(REGARD_X86_V3)
  sum += reinterpret_cast<Mask<float>>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  sum += (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The upper byte of both integers.
REGARD_INLINE Mask<float> upper_bytes(Mask<float> pairs) {
  typedef std::uint16_t Pairs __attribute__((vector_size(kVectorBytes)));
  return reinterpret_cast<Mask<float>>(reinterpret_cast<Pairs>(pairs) >> 8);
}

// The feature that the CPU must have in addition to the target's features. The instruction is
// inline assembly, so that the compiler uses no other instruction of such a CPU.
#if defined(REGARD_X86_V4)
constexpr const char* kQuadsFeature = "avx512_vnni";
#define REGARD_DOT_OF_QUADS "vpdpbusd %2, %1, %0"
#elif defined(REGARD_X86_V3)
constexpr const char* kQuadsFeature = "avx_vnni";
#define REGARD_DOT_OF_QUADS "%{vex%} vpdpbusd %2, %1, %0"
#elif defined(REGARD_WIDE)
// Plain arithmetic, so that complete calls can be tested on CPUs without the instruction.
constexpr const char* kQuadsFeature = "avx2";
#endif

// sum[lane] += the four products of unsigned bytes of a and signed bytes of b.
REGARD_INLINE void add_dot_of_quads(Mask<float>& sum, Mask<float> a, Mask<float> b) {
#if defined(REGARD_DOT_OF_QUADS)
  asm(REGARD_DOT_OF_QUADS : "+v"(sum) : "v"(a), "v"(b));
#else
  for (int byte = 0; byte < 4; ++byte) sum += (a >> 8 * byte & 0xff) * (b << (24 - 8 * byte) >> 24);
#endif
}

}  // namespace
}  // namespace regard
