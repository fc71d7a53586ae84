#include "compute.hpp"

#include <algorithm>

#include "batch_index.hpp"
#include "split.hpp"
#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {
void merge_states(const MergeProblem& problem, int threads, const StopSignal& signal) {
  constexpr std::int64_t kElementsPerThread = 64 * 1024, kElementsPerTask = 32 * 1024;
  const std::int64_t rows = problem.rows.count;
  if (rows == 0) return;
  const Kernels& kernels = kernels_for(active_target(), problem.scalar);
  const double elements_of_row =
      static_cast<double>(problem.parts) * static_cast<double>(problem.columns + 16);
  const double elements = static_cast<double>(rows) * elements_of_row;
  threads = static_cast<int>(
      std::clamp(elements / kElementsPerThread, 1.0, static_cast<double>(std::max(threads, 1))));
  const std::int64_t groups_per_task = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(kElementsPerTask / (kMergeRows * elements_of_row)));
  const std::int64_t rows_per_task = groups_per_task * kMergeRows;
  const std::int64_t tasks = ceil_div(rows, rows_per_task);
  threads = static_cast<int>(std::min<std::int64_t>(threads, tasks));

  // For a group of rows, [parts][kMergeRows] of each: shares, and pointers to outputs and lses.
  const std::int64_t each = problem.parts * kMergeRows;
  const Scratch scratch(threads, 3 * 8 * each);
  parallel_for(threads, tasks, signal, [&](std::int64_t index, Worker& worker) {
    double* const shares = static_cast<double*>(scratch.of(worker));
    const void** const outputs = reinterpret_cast<const void**>(shares + each);
    const void** const lses = outputs + each;
    const std::int64_t end = std::min(rows, (index + 1) * rows_per_task);
    for (std::int64_t begin = index * rows_per_task; begin < end && !worker.should_stop();
         begin += kMergeRows) {
      MergeRows group;
      group.count = static_cast<int>(std::min<std::int64_t>(kMergeRows, end - begin));
      group.outputs = outputs;
      group.lses = lses;
      for (int row = 0; row < group.count; ++row) {
        const BatchIndex at(problem.rows, begin + row);
        for (std::int64_t part = 0; part < problem.parts; ++part) {
          outputs[part * kMergeRows + row] = at.in(problem.outputs[part]);
          lses[part * kMergeRows + row] = at.in(problem.lses[part]);
        }
        group.output[row] = at.in(problem.output);
        group.lse[row] = at.in(problem.lse);
      }
      kernels.rows.merge(problem, group, shares);
    }
  });
}

}  // namespace regard
