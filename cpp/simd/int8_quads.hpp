// Products of 8-bit integers, four per 32-bit lane.
#pragma once

#include "vec.hpp"

namespace regard {
namespace {

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
#if defined(REGARD_WIDE)
  for (int byte = 0; byte < 4; ++byte) sum += (a >> 8 * byte & 0xff) * (b << (24 - 8 * byte) >> 24);
#else
  asm(REGARD_DOT_OF_QUADS : "+v"(sum) : "v"(a), "v"(b));
#endif
}

}  // namespace
}  // namespace regard
