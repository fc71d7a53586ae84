// Transposes a square of kLanes vectors in registers.
//
// log2(kLanes) stages; stage b swaps the off-diagonal b x b blocks of every 2b x 2b block:
//   | A B |    | A C |
//   | C D | -> | B D |
// with one two-input shuffle per vector and stage. Stages 2 and 1 of four-byte lanes are combined:
// separately, the last stage would need two shuffles per vector on x86-64 before AVX-512.
#pragma once

#include <utility>

#include "vec.hpp"

namespace regard {
namespace {

template <class T, int kBlock, std::size_t... kLane>
REGARD_INLINE void swap_blocks(Vec<T>& upper, Vec<T>& lower, std::index_sequence<kLane...>) {
  constexpr int kWidth = kLanes<T>;
  const Vec<T> a = upper, b = lower;
  upper = __builtin_shufflevector(
      a, b, ((kLane & kBlock) ? kWidth + static_cast<int>(kLane) - kBlock : static_cast<int>(kLane))...);
  lower = __builtin_shufflevector(
      a, b, ((kLane & kBlock) ? kWidth + static_cast<int>(kLane) : static_cast<int>(kLane) + kBlock)...);
}

// From every four neighboring lanes of `upper` and `lower`, the lanes kFirst and kSecond.
template <class T, int kFirst, int kSecond, std::size_t... kLane>
REGARD_INLINE Vec<T> shuffle_fours(Vec<T> upper, Vec<T> lower, std::index_sequence<kLane...>) {
  constexpr int kWidth = kLanes<T>;
  constexpr auto from = [](int lane, int of_upper, int of_lower) {
    return lane / 4 * 4 + (lane % 2 == 0 ? of_upper : kWidth + of_lower);
  };
  // (u0 l0 u1 l1), or (u2 l2 u3 l3).
  return __builtin_shufflevector(
      upper, lower, from(static_cast<int>(kLane), static_cast<int>(kLane) % 4 < 2 ? kFirst : kSecond,
                         static_cast<int>(kLane) % 4 < 2 ? kFirst : kSecond)...);
}

// From every four lanes of each vector, two neighboring lanes starting at kFirst.
template <class T, int kFirst, std::size_t... kLane>
REGARD_INLINE Vec<T> shuffle_twos(Vec<T> upper, Vec<T> lower, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(upper, lower,
                                 (static_cast<int>(kLane) / 4 * 4 + kFirst + static_cast<int>(kLane) % 2 +
                                  (static_cast<int>(kLane) % 4 < 2 ? 0 : kLanes<T>))...);
}

// Stages 2 and 1.
template <class T, int kCount>
REGARD_INLINE void transpose_fours(Vec<T> (&rows)[kCount]) {
  constexpr auto kAll = std::make_index_sequence<static_cast<std::size_t>(kLanes<T>)>();
#pragma GCC unroll 4
  for (int i = 0; i < kCount; i += 4) {
    const Vec<T> a = shuffle_fours<T, 0, 1>(rows[i], rows[i + 1], kAll);
    const Vec<T> b = shuffle_fours<T, 2, 3>(rows[i], rows[i + 1], kAll);
    const Vec<T> c = shuffle_fours<T, 0, 1>(rows[i + 2], rows[i + 3], kAll);
    const Vec<T> d = shuffle_fours<T, 2, 3>(rows[i + 2], rows[i + 3], kAll);
    rows[i] = shuffle_twos<T, 0>(a, c, kAll);
    rows[i + 1] = shuffle_twos<T, 2>(a, c, kAll);
    rows[i + 2] = shuffle_twos<T, 0>(b, d, kAll);
    rows[i + 3] = shuffle_twos<T, 2>(b, d, kAll);
  }
}

template <class T, int kBlock, int kCount>
REGARD_INLINE void transpose_stage(Vec<T> (&rows)[kCount]) {
  if constexpr (kBlock == 2 && sizeof(T) == 4) {
    transpose_fours<T>(rows);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i)
    if ((i & kBlock) == 0)
      swap_blocks<T, kBlock>(rows[i], rows[i + kBlock],
                             std::make_index_sequence<static_cast<std::size_t>(kLanes<T>)>());
  if constexpr (kBlock > 1) transpose_stage<T, kBlock / 2>(rows);
}

template <class T>
REGARD_INLINE void transpose(Vec<T> (&square)[kLanes<T>]) {
  transpose_stage<T, kLanes<T> / 2>(square);
}

// fours[i] = lane i of each of kLanes rows of 16 bytes, which are `stride` bytes apart. First, each
// 16 bytes of a vector hold one row.
REGARD_INLINE void load_fours_transposed(const void* first, std::ptrdiff_t stride, Vec<float> (&fours)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const char* const rows = static_cast<const char*>(first) + i * stride;
#if defined(REGARD_X86_V4)
    const auto row = [&](int at) { return _mm_loadu_ps(reinterpret_cast<const float*>(rows + at * stride)); };
    const auto two = [&](int at) { return _mm256_insertf128_ps(_mm256_castps128_ps256(row(at)), row(at + 4), 1); };
    fours[i] = _mm512_insertf32x8(_mm512_castps256_ps512(two(0)), two(8), 1);
#elif defined(REGARD_X86_V3)
    fours[i] = load_two_halves(reinterpret_cast<const float*>(rows), reinterpret_cast<const float*>(rows + 4 * stride));
#else
    for (int lane = 0; lane < kLanes<float>; lane += 4)
      __builtin_memcpy(reinterpret_cast<float*>(&fours[i]) + lane, rows + lane * stride, 16);
#endif
  }
  transpose_fours<float>(fours);
}

// Transposes two squares, one in the lower and one in the upper halves of the vectors.
template <class T>
REGARD_INLINE void transpose_halves(Vec<T> (&squares)[kLanes<T> / 2]) {
  transpose_stage<T, kLanes<T> / 4>(squares);
}

}  // namespace
}  // namespace regard
