// The peaks of one core: arithmetic on a tile of accumulators that are fed from registers, and
// loads that are only summed.
#pragma once

#include "../micro_kernel.hpp"

namespace regard {
namespace {

// Runs `steps` rounds of fma over a tile and returns the number of floating-point operations.
template <class Shape>
REGARD_NOINLINE double fma_rounds(std::int64_t steps) {
  using T = typename Shape::Element;
  constexpr int kRows = Shape::kRows, kVectors = Shape::kVectors;
  Accumulators<T, kRows, kVectors> acc;
  // All values differ; otherwise the compiler would compute one accumulator and copy it.
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = broadcast(T(r * kVectors + v));
  Vec<T> left = broadcast(T(0.5)), right = broadcast(T(0.25));
  for (std::int64_t step = 0; step < steps; ++step) {
    // Opaque to the compiler, which would otherwise sum the series analytically.
    asm volatile("" : "+m"(left), "+m"(right));
    const Vec<T> a = left, b = right;
#pragma GCC unroll 4
    for (int repeat = 0; repeat < 4; ++repeat)
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(a, acc[r][v], b);
  }
  Vec<T> sum{};
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum = sum + acc[r][v];
  asm volatile("" : : "m"(sum));
  return 2.0 * 4 * kRows * kVectors * kLanes<T> * static_cast<double>(steps);
}

// Reads memory once, in order, at the speed of loads. The sums are over integers, so no value is
// slow.
REGARD_NOINLINE void read_bytes(const void* from, std::int64_t bytes) {
  constexpr int kSums = 8;
  constexpr int kStep = kSums * kVectorBytes;
  constexpr int kLine = 64, kAhead = 16 * kLine;  // beyond hardware prefetching: 10% faster
  const char* next = static_cast<const char*>(from);
  Mask<double> sums[kSums] = {};
  for (const char* end = next + bytes; next != end; next += kStep) {
#pragma GCC unroll 8
    for (int at = 0; at < kStep; at += kLine) __builtin_prefetch(next + kAhead + at);
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i)
      sums[i] += as_bits<double>(load(reinterpret_cast<const double*>(next + i * kVectorBytes)));
  }
  for (int i = 0; i < kSums; ++i) asm volatile("" : : "m"(sums[i]));
}

}  // namespace
}  // namespace regard
