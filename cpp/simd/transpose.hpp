// Transposes a square of kLanes vectors in registers.
//
// log2(kLanes) stages; stage b swaps the off-diagonal b x b blocks of every 2b x 2b block:
//   | A B |    | A C |
//   | C D | -> | B D |
// with one two-input shuffle a vector and stage.
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

template <class T, int kBlock, int kCount>
REGARD_INLINE void transpose_stage(Vec<T> (&rows)[kCount]) {
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

// Transposes two squares, of the lower and of the upper halves of vectors, each in its half.
template <class T>
REGARD_INLINE void transpose_halves(Vec<T> (&squares)[kLanes<T> / 2]) {
  transpose_stage<T, kLanes<T> / 4>(squares);
}

}  // namespace
}  // namespace regard
