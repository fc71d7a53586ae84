// The instructions that the kernels use beyond plain C++, with one wrapper each. No other file here
// contains PTX. Without nvcc, a header of the tests replaces this header and defines the meaning of
// each instruction: the same kernels then run on a CPU (cpp/tests/cuda/emulation).
//
// A lane is a thread's position in its warp. Wrappers marked "of the warp" are executed by all of
// its lanes together, and wrappers marked "of the block" by all threads of the block.
#pragma once

#ifndef __CUDACC__
#include <emulated_instructions.hpp>
#else

#include <cuda_runtime.h>

#include <cstdint>

#include "elements.hpp"

namespace regard::cuda {

struct alignas(16) Words4 {
  std::uint32_t word[4];
};

// The shared memory that the launch requested.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// Reads or writes 4 or 16 bytes of shared memory: T is a number or Words4. Of the warp.
template <class T>
__device__ __forceinline__ T load_shared(const unsigned char* from) {
  return *reinterpret_cast<const T*>(from);
}
template <class T>
__device__ __forceinline__ void store_shared(unsigned char* to, const T& value) {
  *reinterpret_cast<T*>(to) = value;
}

// Starts to copy `bytes` (0 to 16) from global to shared memory and fills the rest of 16 with zeros. Both
// addresses are multiples of 16. The data may be read after commit_copies, wait_for_copies and a barrier.
__device__ __forceinline__ void copy_async(unsigned char* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}

// Makes a group of this thread's copies since the last group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's latest groups are pending.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Reads four matrices of 8 x 8 16-bit elements. Lane l passes the address of row l % 8 of matrix l
// / 8, and receives from matrix m, in word[m], the elements 2 (l % 4) and 2 (l % 4) + 1 of row l /
// 4 (of column l / 4 if kTransposed). Of the warp.
template <bool kTransposed>
__device__ __forceinline__ Words4 load_matrices(const unsigned char* row) {
  Words4 to;
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
                 : "r"(shared_address(row))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
                 : "r"(shared_address(row))
                 : "memory");
  return to;
}

// c += a b, with c of 16 x 8 float32 elements, and a of 16 x 16 and b of 16 x 8 elements of T. Lane
// l has
//   c0, c1   row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1; c2, c3 the same in row l / 4 + 8
//   a[0]     row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1; a[1] in row l / 4 + 8; a[2], a[3] 8 columns later
//   b0       rows 2 (l % 4) and 2 (l % 4) + 1, column l / 4; b1 8 rows later
// Of the warp.
template <class T>
__device__ __forceinline__ void multiply_add(float& c0, float& c1, float& c2, float& c3,
                                             const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (T::kElement == Element::float16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// a b, rounded: the compiler does not contract it with a later sum.
__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }

// 2^x with a relative error of about 2^-22; results below the normal numbers are 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Two numbers rounded to T, to nearest, ties to even; `low` in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t packed;
  if constexpr (T::kElement == Element::float16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The value of the lane whose number differs from this one's in the bits of `lanes`. Of the warp.
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int lanes) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
}

// Every thread of the block may read after a barrier what any thread wrote to memory before it.
__device__ __forceinline__ void block_barrier() { __syncthreads(); }

// A block_barrier that returns whether the condition holds in any thread of the block.
__device__ __forceinline__ bool any_thread(bool condition) { return __syncthreads_or(condition) != 0; }

}  // namespace regard::cuda

#endif
