// How much work is worth a thread, and how much may pass between two looks at the stop signal, in
// multiplications; and how much memory the heads that are computed together may share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace regard {

// Below this a thread costs more to wake than it brings.
constexpr double kWorkPerThread = 100e3;
// Some milliseconds on a slow target.
constexpr double kWorkPerInterval = 50e6;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline int threads_for(double work, int threads) {
  return static_cast<int>(
      std::clamp(work / kWorkPerThread, 1.0, static_cast<double>(std::max(threads, 1))));
}

// Steps of `unit` between two looks, at least one, for work_of_unit each.
inline std::int64_t interval_of(std::int64_t unit, double work_of_unit) {
  return unit *
         std::max<std::int64_t>(1, static_cast<std::int64_t>(kWorkPerInterval / work_of_unit));
}

// Heads whose tasks need memory of their own (partial gradients, sums over queries, keys in int8) are computed in
// waves, which use the same memory one after another. A wave takes this much for each thread ...
constexpr std::int64_t kWaveBytesPerThread = std::int64_t{2} << 20;
// ... or as much as it takes to have this many tasks for each thread, since threads wait for each other at its end ...
constexpr std::int64_t kWaveTasksPerThread = 8;
// ... but no more than this for each thread, or what one head takes.
constexpr std::int64_t kMostWaveBytesPerThread = std::int64_t{8} << 20;

// Whether a wave that has `tasks` ends before a head with which it would take `bytes`.
inline bool is_wave_full(std::int64_t bytes, std::int64_t tasks, int threads) {
  return bytes > kMostWaveBytesPerThread * threads ||
         (bytes > kWaveBytesPerThread * threads && tasks >= kWaveTasksPerThread * threads);
}

}  // namespace regard
