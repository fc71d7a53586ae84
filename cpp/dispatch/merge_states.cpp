#include "merge_states.hpp"

#include <algorithm>

#include "batch_index.hpp"
#include "no_memory.hpp"
#include "split.hpp"
#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {
namespace {

// Memory for a group of rows: [parts][kMergeRows] of each.
struct Workspace {
  double* shares;
  const void** outputs;
  const void** lses;

  static std::int64_t bytes(std::int64_t parts) {
    std::int64_t bytes;
    if (__builtin_mul_overflow(parts, kMergeRows * 3 * 8, &bytes))
      throw NoMemory(INT64_MAX, "workspace for the parts");
    return bytes;
  }
  Workspace(void* memory, std::int64_t parts) {
    const std::int64_t each = parts * kMergeRows;
    shares = static_cast<double*>(memory);
    outputs = reinterpret_cast<const void**>(shares + each);
    lses = outputs + each;
  }
};

}  // namespace

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

  const Scratch scratch(threads, Workspace::bytes(problem.parts));
  parallel_for(threads, tasks, signal, [&](std::int64_t index, Worker& worker) {
    const Workspace work(scratch.of(worker), problem.parts);
    const std::int64_t end = std::min(rows, (index + 1) * rows_per_task);
    for (std::int64_t begin = index * rows_per_task; begin < end && !worker.should_stop();
         begin += kMergeRows) {
      MergeRows group;
      group.count = static_cast<int>(std::min<std::int64_t>(kMergeRows, end - begin));
      group.outputs = work.outputs;
      group.lses = work.lses;
      for (int row = 0; row < group.count; ++row) {
        const BatchIndex at(problem.rows, begin + row);
        for (std::int64_t part = 0; part < problem.parts; ++part) {
          work.outputs[part * kMergeRows + row] = at.in(problem.outputs[part]);
          work.lses[part * kMergeRows + row] = at.in(problem.lses[part]);
        }
        group.output[row] = at.in(problem.output);
        group.lse[row] = at.in(problem.lse);
      }
      kernels.rows.merge(problem, group, work.shares);
    }
  });
}

}  // namespace regard
