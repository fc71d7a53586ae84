#include "calibration.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "targets.hpp"

namespace regard {

double fma_peak(Scalar scalar, int threads, const StopSignal& signal) {
  const Kernels& kernels = kernels_for(active_target(), scalar);
  constexpr std::int64_t kSteps = 100'000;  // a millisecond or so
  constexpr int kTries = 100;
  double best = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::vector<double> operations(static_cast<std::size_t>(threads), 0.0);
    const auto start = std::chrono::steady_clock::now();
    parallel_for(threads, threads, signal, [&](std::int64_t task, Worker&) {
      operations[static_cast<std::size_t>(task)] = kernels.fma_rounds(kSteps);
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    double sum = 0;
    for (const double count : operations) sum += count;
    best = std::max(best, sum / elapsed.count());
  }
  return best;
}

}  // namespace regard
