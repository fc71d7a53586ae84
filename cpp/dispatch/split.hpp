// How much work is worth a thread, and how much may pass between two looks at the stop signal; in
// multiplications.
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

}  // namespace regard
