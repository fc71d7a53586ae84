#include "compute.hpp"

#include <algorithm>
#include <atomic>

#include "split.hpp"
#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {

bool quantize_rows(const QuantizeProblem& problem, int threads, const StopSignal& signal) {
  constexpr std::int64_t kElementsPerTask = 64 * 1024;
  const Kernels& kernels = kernels_for(active_target(), Scalar::float32);
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / problem.columns);
  const std::int64_t tasks = ceil_div(problem.rows, rows_per_task);
  threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, std::max(threads, 1)));
  const Scratch scratch(threads, problem.columns * 4);
  std::atomic<bool> are_held{true};
  parallel_for(threads, tasks, signal, [&](std::int64_t index, Worker& worker) {
    if (worker.should_stop()) return;
    const std::int64_t begin = index * rows_per_task;
    if (!kernels.rows.quantize(problem, begin, std::min(problem.rows, begin + rows_per_task),
                               static_cast<float*>(scratch.of(worker))))
      are_held = false;
  });
  return are_held;
}

}  // namespace regard
