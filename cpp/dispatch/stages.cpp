#include "stages.hpp"

#include <algorithm>

#include "batch_index.hpp"
#include "targets.hpp"

namespace regard {
namespace {

constexpr std::int64_t kElementsPerThread = 32 * 1024;
// A task's rows: enough to pay for handing it out, few enough to share well.
constexpr std::int64_t kElementsPerTask = 16 * 1024;

}  // namespace

void run_stage(const StageProblem& problem, int threads, const StopSignal& signal) {
  const std::int64_t rows = problem.rows.count;
  const std::int64_t columns = problem.columns;
  if (rows == 0 || columns == 0) return;
  const Kernels& kernels = kernels_for(active_target(), problem.scalar);
  const double elements = static_cast<double>(rows) * static_cast<double>(columns);
  threads = static_cast<int>(
      std::clamp(elements / kElementsPerThread, 1.0, static_cast<double>(std::max(threads, 1))));
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / columns);
  const std::int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  parallel_for(threads, tasks, signal, [&](std::int64_t index, Worker&) {
    const std::int64_t end = std::min(rows, (index + 1) * rows_per_task);
    for (std::int64_t row = index * rows_per_task; row < end; ++row) {
      const BatchIndex at(problem.rows, row);
      StageRow stage_row{};
      stage_row.input = at.in(problem.input);
      stage_row.mask = at.in(problem.mask);
      stage_row.output = at.in(problem.output);
      kernels.rows.stage(problem, stage_row);
    }
  });
}

}  // namespace regard
