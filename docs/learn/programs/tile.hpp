// A vector of float32, and the tile of sums that stays in registers.
#pragma once

constexpr int kDim = 64;   // of a query, a key and a value
constexpr int kKeys = 96;  // of a block

#if defined(__AVX512F__)  // 32 registers of 16 lanes
constexpr int kLanes = 16, kRows = 8;
#elif defined(__AVX__)  // 16 registers of 8 lanes
constexpr int kLanes = 8, kRows = 4;
#elif defined(__aarch64__)  // 32 registers of 4 lanes
constexpr int kLanes = 4, kRows = 8;
#else  // 16 registers of 4 lanes
constexpr int kLanes = 4, kRows = 4;
#endif
constexpr int kVectors = 3;
constexpr int kQueries = kVectors * kLanes;  // of a strip

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<Unaligned*>(to) = value; }
inline Vec broadcast(float value) { return value - Vec{}; }

using Tile = Vec[kRows][kVectors];

// tile[r][lane] += sum over i of a[r * row + i * step] * b[i * kQueries + lane]
__attribute__((always_inline)) inline void multiply(Tile& tile, const float* a, int row,
                                                    int step, const float* b, int depth) {
  for (int i = 0; i < depth; ++i) {
    Vec right[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + i * kQueries + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec left = broadcast(a[r * row + i * step]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) tile[r][v] += left * right[v];  // one instruction
    }
  }
}

// to[r * kQueries + lane] = tile[r][lane]
__attribute__((always_inline)) inline void store_tile(const Tile& tile, float* to) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(to + r * kQueries + v * kLanes, tile[r][v]);
}
