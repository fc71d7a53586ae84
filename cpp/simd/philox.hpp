// Philox4x32-10, random words as a function of a counter and a key (Salmon et al. 2011, "Parallel
// Random Numbers: As Easy as 1, 2, 3"), lane by lane, with one counter per lane.
//
// A word is in the low half of 64 bits, because a product of two words has 64 bits. The high half
// is arbitrary, and no operation reads it.
#pragma once

#include "vec.hpp"

namespace regard {
namespace {

typedef std::uint64_t Words __attribute__((vector_size(kVectorBytes)));

// The products of the words in a and b.
#if defined(REGARD_X86_V4)
REGARD_INLINE Words multiply_words(Words a, Words b) {
  return reinterpret_cast<Words>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
#elif defined(REGARD_X86_V3)
REGARD_INLINE Words multiply_words(Words a, Words b) {
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
#elif defined(REGARD_SSE2)
REGARD_INLINE Words multiply_words(Words a, Words b) {
  return reinterpret_cast<Words>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
#else
REGARD_INLINE Words multiply_words(Words a, Words b) {
  return (a & 0xffffffff) * (b & 0xffffffff);
}
#endif

struct PhiloxKey {
  std::uint32_t low;
  std::uint32_t high;
};

// Ten rounds: `counter` becomes the four words of each lane.
REGARD_INLINE void philox(Words (&counter)[4], PhiloxKey key) {
  const Words first = Words{} + 0xD2511F53u, second = Words{} + 0xCD9E8D57u;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Words a = multiply_words(first, counter[0]), b = multiply_words(second, counter[2]);
    counter[0] = (b >> 32) ^ counter[1] ^ (Words{} + key.low);
    counter[1] = b;
    counter[2] = (a >> 32) ^ counter[3] ^ (Words{} + key.high);
    counter[3] = a;
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
}

// The four words of kLanes<T> counters, with each word in a separate lane: words[w] holds word w of
// every counter. `lane[i]` is word i + 1 of the counter in each lane. Word 0 is the same in all
// lanes.
template <class T>
REGARD_INLINE void philox_of_lanes(std::uint32_t word_0, const Mask<T> (&lane)[3], PhiloxKey key,
                                   Mask<T>* words) {
  // With 32-bit lanes, the first pass handles the even lanes and the second pass the odd lanes.
  constexpr int kPasses = 8 / static_cast<int>(sizeof(T));
  Words passes[kPasses][4];
#pragma GCC unroll 2
  for (int pass = 0; pass < kPasses; ++pass) {
    passes[pass][0] = Words{} + word_0;
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) passes[pass][i + 1] = reinterpret_cast<Words>(lane[i]) >> (32 * pass);
    philox(passes[pass], key);
  }
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    Words word = passes[0][w] & 0xffffffff;
    if constexpr (kPasses == 2) word |= passes[1][w] << 32;
    words[w] = reinterpret_cast<Mask<T>>(word);
  }
}

// Whether a word is above a limit, both unsigned.
template <class T>
REGARD_INLINE Mask<T> word_is_above(Mask<T> word, std::uint32_t limit) {
  if constexpr (sizeof(T) == 8) {
    return word > Mask<T>{} + static_cast<std::int64_t>(limit);
  } else {
    const std::int32_t sign = INT32_MIN;
    return (word ^ sign) > Mask<T>{} + (static_cast<std::int32_t>(limit) ^ sign);
  }
}

}  // namespace
}  // namespace regard
