// What this machine can do at best, measured: the yardsticks of every benchmark.
#pragma once

#include "../problem/operand.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Floating-point operations a second of `threads` threads doing nothing but fma on the active target,
// the best of several tries.
double fma_peak(Scalar scalar, int threads, const StopSignal& signal);

// Bytes a second of `threads` threads that do nothing but read, each its share of `bytes`, the best
// of several tries. That is memory's speed where `bytes` is far more than the last cache holds.
// `bytes` is at least kReadStep * threads. Throws NoMemory.
double read_bandwidth(std::int64_t bytes, int threads, const StopSignal& signal);
constexpr std::int64_t kReadStep = 512;

}  // namespace regard
