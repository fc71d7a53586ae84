// The instructions for which a source is compiled. A target's header (kernels/targets) defines its
// macro before it includes anything; the width of a vector follows from it.
//
//   REGARD_X86_V4   AVX-512 (F, BW, CD, DQ, VL) and the instructions of REGARD_X86_V3
//   REGARD_X86_V3   AVX2, FMA and F16C
//   REGARD_SSE2     the baseline of x86-64
//   REGARD_NEON     AArch64 Advanced SIMD, its baseline
//   REGARD_WASM     WebAssembly with 128-bit SIMD
//   REGARD_WIDE     vectors as wide as with REGARD_X86_V4, built from narrower vectors
//   none of them    vectors of 16 bytes, implemented by the compiler
#pragma once

#if defined(REGARD_BASELINE) && defined(__x86_64__)
#define REGARD_SSE2
#elif defined(REGARD_BASELINE) && defined(__aarch64__)
#define REGARD_NEON
#endif

#define REGARD_INLINE static inline __attribute__((always_inline))
#define REGARD_NOINLINE static __attribute__((noinline))
#define REGARD_MEMBER inline __attribute__((always_inline))  // for member functions
#define REGARD_INLINED __attribute__((always_inline))  // after the parameters of a lambda

namespace regard {
namespace {

#if defined(REGARD_X86_V4) || defined(REGARD_WIDE)
constexpr int kVectorBytes = 64;
#elif defined(REGARD_X86_V3)
constexpr int kVectorBytes = 32;
#elif defined(REGARD_SSE2) || defined(REGARD_NEON) || defined(REGARD_WASM) || defined(REGARD_BASELINE)
constexpr int kVectorBytes = 16;
#else
#error "include a header of kernels/targets first"
#endif

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

}  // namespace
}  // namespace regard
