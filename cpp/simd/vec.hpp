// The vector type: as wide as the target's registers, based on GCC/Clang vector extensions.
//
// Everything here has internal linkage, so that each target keeps its own copy, and the linker
// cannot use a copy compiled for a newer CPU on an older one. Arithmetic uses the ordinary
// operators. Operations that the extensions cannot express (a fused multiply-add, a test of all
// lanes) are in this file, once per instruction set. Kernels are compiled with -ffp-contract=off: a
// product and a sum are fused only where `fma` requests it, so that every instantiation rounds
// alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "instruction_set.hpp"

#if defined(REGARD_X86_V4) || defined(REGARD_X86_V3)
#include <immintrin.h>
#elif defined(REGARD_SSE2)
#include <emmintrin.h>  // takes a tenth of the compile time
#elif defined(REGARD_NEON)
#include <arm_neon.h>
#elif defined(REGARD_WASM)
#include <wasm_simd128.h>
#endif

namespace regard {
namespace {

template <class T>
struct VectorOf;

template <>
struct VectorOf<float> {
  typedef float Vec __attribute__((vector_size(kVectorBytes)));
  typedef float Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  typedef std::int32_t Mask __attribute__((vector_size(kVectorBytes)));
};

template <>
struct VectorOf<double> {
  typedef double Vec __attribute__((vector_size(kVectorBytes)));
  typedef double Unaligned __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  typedef std::int64_t Mask __attribute__((vector_size(kVectorBytes)));
};

// A signed integer as wide as a lane.
template <int kBytes>
using LaneWord = std::conditional_t<kBytes == 8, std::int64_t, std::int32_t>;

template <class T>
using Vec = typename VectorOf<T>::Vec;
template <class T>
using Mask = typename VectorOf<T>::Mask;  // all bits are set in lanes that are true

template <class T>
REGARD_INLINE Vec<T> load(const T* from) {
  return *reinterpret_cast<const typename VectorOf<T>::Unaligned*>(from);
}

template <class T>
REGARD_INLINE void store(T* to, Vec<T> value) {
  *reinterpret_cast<typename VectorOf<T>::Unaligned*>(to) = value;
}

template <class T>
REGARD_INLINE Vec<T> broadcast(T value) {
  return value - Vec<T>{};  // x - 0 is x for every x, including -0.0 and NaN
}

template <class T>
REGARD_INLINE Vec<T> select(Mask<T> condition, Vec<T> yes, Vec<T> no) {
  return condition ? yes : no;
}

// Returns the second operand if either is NaN, as maxps does.
template <class T>
REGARD_INLINE Vec<T> maximum(Vec<T> a, Vec<T> b) {
  return a > b ? a : b;
}

// Loads half a vector from each pointer, side by side. Loads from memory replace shuffles.
REGARD_INLINE Vec<float> load_two_halves(const float* lower, const float* upper) {
#if defined(REGARD_X86_V4)
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(lower)), _mm256_loadu_ps(upper), 1);
#elif defined(REGARD_X86_V3)
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(lower)), _mm_loadu_ps(upper), 1);
#else
  Vec<float> value;
  __builtin_memcpy(&value, lower, sizeof value / 2);
  __builtin_memcpy(reinterpret_cast<char*>(&value) + sizeof value / 2, upper, sizeof value / 2);
  return value;
#endif
}

template <class T>
REGARD_INLINE Mask<T> as_bits(Vec<T> value) {
  return reinterpret_cast<Mask<T>>(value);
}

template <class T>
REGARD_INLINE Vec<T> as_value(Mask<T> bits) {
  return reinterpret_cast<Vec<T>>(bits);
}

// a * b + c, rounded once if the target has the instruction.
#if defined(REGARD_X86_V4)
REGARD_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm512_fmadd_ps(a, b, c);
}
REGARD_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
REGARD_INLINE bool any_greater(Vec<float> a, Vec<float> b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}
REGARD_INLINE bool any_greater(Vec<double> a, Vec<double> b) {
  return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ) != 0;
}
#elif defined(REGARD_X86_V3)
REGARD_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return _mm256_fmadd_ps(a, b, c);
}
REGARD_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}
REGARD_INLINE bool any_greater(Vec<float> a, Vec<float> b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}
REGARD_INLINE bool any_greater(Vec<double> a, Vec<double> b) {
  return _mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GT_OQ)) != 0;
}
#elif defined(REGARD_SSE2)
REGARD_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return a * b + c; }
REGARD_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return a * b + c; }
REGARD_INLINE bool any_greater(Vec<float> a, Vec<float> b) {
  return _mm_movemask_ps(_mm_cmpgt_ps(a, b)) != 0;
}
REGARD_INLINE bool any_greater(Vec<double> a, Vec<double> b) {
  return _mm_movemask_pd(_mm_cmpgt_pd(a, b)) != 0;
}
#elif defined(REGARD_NEON)
REGARD_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) {
  return (Vec<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
REGARD_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) {
  return (Vec<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
REGARD_INLINE bool any_greater(Vec<float> a, Vec<float> b) {
  return vmaxvq_u32(vcgtq_f32((float32x4_t)a, (float32x4_t)b)) != 0;
}
REGARD_INLINE bool any_greater(Vec<double> a, Vec<double> b) {
  return vmaxvq_u32(vreinterpretq_u32_u64(vcgtq_f64((float64x2_t)a, (float64x2_t)b))) != 0;
}
#elif defined(REGARD_WASM)
REGARD_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return a * b + c; }
REGARD_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return a * b + c; }
template <class V>
REGARD_INLINE bool any_greater(V a, V b) {
  return wasm_v128_any_true((v128_t)(a > b));
}
#else
REGARD_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return a * b + c; }
REGARD_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return a * b + c; }
template <class V>
REGARD_INLINE bool any_greater(V a, V b) {
  bool any = false;
  for (int lane = 0; lane < static_cast<int>(sizeof(V) / sizeof(a[0])); ++lane)
    any |= a[lane] > b[lane];
  return any;
}
#endif

template <class T>
REGARD_INLINE bool any(Mask<T> condition) {
  return any_greater(select<T>(condition, broadcast(T(1)), Vec<T>{}), Vec<T>{});
}

// Hides the values of these integers and pointers from the compiler. Suppose that a loop needs 16
// addresses `row + i * stride`: the compiler would compute all of them before the loop, which
// requires more registers than the CPU has. After forget(row, stride), it computes each address
// where it is used.
template <class... Values>
REGARD_INLINE void forget(Values&... values) {
  const auto one = [](auto& value) { asm("" : "+r"(value)); };
  (one(values), ...);
}

// A compile-time number as an object: loops and tiles are compiled for each value that a call may
// have.
template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

}  // namespace
}  // namespace regard
