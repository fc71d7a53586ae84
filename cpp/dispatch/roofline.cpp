#include "compute.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double fma_peak(Scalar scalar, int threads, const StopSignal& signal) {
  const Kernels& kernels = kernels_for(active_target(), scalar);
  constexpr std::int64_t kSteps = 100'000;  // a millisecond or so
  constexpr int kTries = 100;
  double best = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::vector<double> operations(static_cast<std::size_t>(threads), 0.0);
    const Clock::time_point start = Clock::now();
    parallel_for(threads, threads, signal, [&](std::int64_t task, Worker&) {
      operations[static_cast<std::size_t>(task)] = kernels.roofline.fma_rounds(kSteps);
    });
    const double elapsed = seconds_since(start);
    double sum = 0;
    for (const double count : operations) sum += count;
    best = std::max(best, sum / elapsed);
  }
  return best;
}

double read_bandwidth(std::int64_t bytes, int threads, const StopSignal& signal) {
  const Kernels& kernels = kernels_for(active_target(), Scalar::float32);
  constexpr std::int64_t kPieces = 64;  // of a share, so that Ctrl-C need not wait for the whole share
  constexpr int kTries = 6;
  const std::int64_t share = bytes / threads / kReadStep * kReadStep;
  const std::int64_t piece = std::max(share / kPieces / kReadStep, std::int64_t{1}) * kReadStep;
  const Scratch memory(1, share * threads, "memory to be read");
  const auto for_each_share = [&](auto&& visit) {
    parallel_for(threads, threads, signal, [&](std::int64_t task, Worker& worker) {
      char* const begin = static_cast<char*>(memory.at(0)) + task * share;
      for (std::int64_t at = 0; at < share && !worker.should_stop(); at += piece)
        visit(begin + at, std::min(piece, share - at));
    });
  };
  for_each_share([](char* at, std::int64_t size) {
    std::memset(at, 1, static_cast<std::size_t>(size));  // untouched pages all map to one page of zeros
  });
  double best = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const Clock::time_point start = Clock::now();
    for_each_share([&](const char* at, std::int64_t size) { kernels.roofline.read_bytes(at, size); });
    best = std::max(best, static_cast<double>(share * threads) / seconds_since(start));
  }
  return best;
}

}  // namespace regard
