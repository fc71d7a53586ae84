// The instruction that multiplies four pairs of bytes in each lane, and adds them to its sum.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include "tile.hpp"

typedef int Ints __attribute__((vector_size(4 * kLanes)));

// x86 multiplies bytes without a sign by bytes with a sign. Bytes of queries are therefore stored
// kOffset too large, and the sums begin at -kOffset times the sum of the key's bytes.
#if defined(__AVX512VNNI__)
constexpr int kOffset = 128, kHasInstruction = 1;
inline Ints dot(Ints sum, Ints query, Ints key) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)query, (__m512i)key);
}
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
constexpr int kOffset = 128, kHasInstruction = 1;
inline Ints dot(Ints sum, Ints query, Ints key) {
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)query, (__m256i)key);
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int kOffset = 0, kHasInstruction = 1;
inline Ints dot(Ints sum, Ints query, Ints key) {
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)query, (int8x16_t)key);
}
#else  // the same sums, by several instructions for each byte
constexpr int kOffset = 0, kHasInstruction = 0;
inline Ints dot(Ints sum, Ints query, Ints key) {
  for (int left = 24; left >= 0; left -= 8)  // moves a byte to the top, then to the bottom
    sum += ((query << left) >> 24) * ((key << left) >> 24);
  return sum;
}
#endif
