// The tile of sums that stays in registers: kRows rows of some vectors.
#pragma once

#include "vector.hpp"

constexpr int kKeys = 96;  // of a block
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRows = 8;  // 8 x 3 sums, 3 vectors and a broadcast in 32 registers
#else
constexpr int kRows = 4;  // 4 x 3 sums, 3 vectors and a broadcast in 16 registers
#endif
constexpr int kVectors = 3;
constexpr int kQueries = kVectors * kLanes;  // of a strip

template <int kWide>
using TileOf = Vec[kRows][kWide];
using Tile = TileOf<kVectors>;

// tile[r][lane] += sum over i of a[r * row + i * step] * b[i * b_row + lane]
template <int kWide>
__attribute__((always_inline)) inline void multiply(TileOf<kWide>& tile, const float* a,
                                                    int row, int step, const float* b,
                                                    int depth, int b_row = kQueries) {
  for (int i = 0; i < depth; ++i) {
    Vec right[kWide];
#pragma GCC unroll 3
    for (int v = 0; v < kWide; ++v) right[v] = load(b + i * b_row + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec left = broadcast(a[r * row + i * step]);
#pragma GCC unroll 3
      for (int v = 0; v < kWide; ++v) tile[r][v] += left * right[v];  // one FMA
    }
  }
}

// to[r * to_row + lane] = tile[r][lane]
template <int kWide>
__attribute__((always_inline)) inline void store_tile(const TileOf<kWide>& tile, float* to,
                                                      int to_row = kQueries) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kWide; ++v) store(to + r * to_row + v * kLanes, tile[r][v]);
}
