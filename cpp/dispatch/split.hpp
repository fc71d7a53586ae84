// The amount of work that justifies a thread, and the amount between two checks of the stop signal,
// in multiplications; and the memory that heads may share when they are computed together.
#pragma once

#include <algorithm>
#include <cstdint>

namespace regard {

// Below this, waking a thread costs more than it gains.
constexpr double kWorkPerThread = 100e3;
// Some milliseconds on a slow target.
constexpr double kWorkPerInterval = 50e6;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline int threads_for(double work, int threads) {
  return static_cast<int>(
      std::clamp(work / kWorkPerThread, 1.0, static_cast<double>(std::max(threads, 1))));
}

// The interval between two checks, in whole steps of `unit`, at least one. Each step costs
// work_of_unit.
inline std::int64_t interval_of(std::int64_t unit, double work_of_unit) {
  return unit *
         std::max<std::int64_t>(1, static_cast<std::int64_t>(kWorkPerInterval / work_of_unit));
}

// Heads whose tasks need extra memory (partial gradients, sums over queries, keys in int8) are
// computed in waves, which use the same memory one after another. A wave uses this much for each
// thread ...
constexpr std::int64_t kWaveBytesPerThread = std::int64_t{2} << 20;
// ... or as much as is needed for this many tasks per thread, since threads wait for each other at
// its end ...
constexpr std::int64_t kWaveTasksPerThread = 8;
// ... but no more than this for each thread, or than one head needs.
constexpr std::int64_t kMostWaveBytesPerThread = std::int64_t{8} << 20;

// Whether a wave of `tasks` tasks ends before a head with which it would need `bytes`.
inline bool is_wave_full(std::int64_t bytes, std::int64_t tasks, int threads) {
  return bytes > kMostWaveBytesPerThread * threads ||
         (bytes > kWaveBytesPerThread * threads && tasks >= kWaveTasksPerThread * threads);
}

}  // namespace regard
