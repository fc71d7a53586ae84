// A vector of float32: as many numbers as one register holds, and one instruction changes.
#pragma once

constexpr int kDim = 64;  // of a query, a key and a value

#if defined(__AVX512F__)  // 32 registers of 16 lanes
constexpr int kLanes = 16;
#elif defined(__AVX__)  // 16 registers of 8 lanes
constexpr int kLanes = 8;
#else  // SSE2: 16 registers of 4 lanes; NEON: 32
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<Unaligned*>(to) = value; }
inline Vec broadcast(float value) { return value - Vec{}; }  // the same number in every lane
