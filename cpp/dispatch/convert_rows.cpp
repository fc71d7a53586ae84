#include "convert_rows.hpp"

#include <algorithm>
#include <atomic>

#include "batch_index.hpp"
#include "threads/parallel_for.hpp"
#include "split.hpp"
#include "targets.hpp"

namespace regard {
namespace {

// Enough to pay for waking a thread.
constexpr std::int64_t kElementsPerTask = 64 * 1024;

}  // namespace

bool convert_rows(const ConvertProblem& problem, int threads) {
  const Kernels& kernels = kernels_for(active_target(), Scalar::float32);
  const std::int64_t rows = problem.rows.count, columns = problem.columns;
  if (rows == 0 || columns == 0) return false;
  // A task is a few rows, or a piece of one.
  const std::int64_t pieces = ceil_div(columns, kElementsPerTask);
  const std::int64_t piece = ceil_div(columns, pieces);
  const std::int64_t rows_per_task = std::max<std::int64_t>(1, kElementsPerTask / columns);
  const std::int64_t tasks = ceil_div(rows, rows_per_task) * pieces;
  threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, std::max(threads, 1)));
  std::atomic<bool> overflows{false};
  parallel_for(threads, tasks, StopSignal{}, [&](std::int64_t index, Worker&) {
    const std::int64_t first = index / pieces * rows_per_task, begin = index % pieces * piece;
    for (std::int64_t row = first; row < std::min(rows, first + rows_per_task); ++row) {
      const BatchIndex at(problem.rows, row);
      if (kernels.convert_row(problem, at.in(problem.from), at.in(problem.to), begin,
                            std::min(columns, begin + piece)))
        overflows = true;
    }
  });
  return overflows;
}

}  // namespace regard
