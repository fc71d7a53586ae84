// Products of 16-bit integers, two per 32-bit lane.
#pragma once

#include <cstdint>

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

}  // namespace
}  // namespace regard
