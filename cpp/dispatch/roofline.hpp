// The measured limits of this machine, which every benchmark is compared with.
#pragma once

#include "../problem/operand.hpp"
#include "threads/parallel_for.hpp"

namespace regard {

// Floating-point operations per second of `threads` threads that do nothing but fma on the active
// target, the best of several tries.
double fma_peak(Scalar scalar, int threads, const StopSignal& signal);

// Bytes per second of `threads` threads that do nothing but read, each its share of `bytes`, the
// best of several tries. This is the memory bandwidth if `bytes` far exceeds the size of the
// last-level cache. `bytes` must be at least kReadStep * threads. Throws NoMemory.
double read_bandwidth(std::int64_t bytes, int threads, const StopSignal& signal);
constexpr std::int64_t kReadStep = 512;

}  // namespace regard
