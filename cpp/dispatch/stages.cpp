#include "compute.hpp"

#include <algorithm>

#include "batch_index.hpp"
#include "split.hpp"
#include "targets.hpp"

namespace regard {
namespace {

// Elements of a task: enough to amortize handing it out, and few enough to balance well. Otherwise
// many, since the hardware prefetcher starts anew at the beginning of each task.
constexpr std::int64_t kFewElements = 16 * 1024;
constexpr std::int64_t kManyElements = 256 * 1024;
// Rows and columns are divided between the vectors of every target.
constexpr std::int64_t kWholeVectors = 64;

std::int64_t stride_of_rows(const Operand& operand, const BatchShape& rows) {
  return rows.axes > 0 && operand.batch_strides ? operand.batch_strides[rows.axes - 1] : 0;
}

}  // namespace

void run_stage(const StageProblem& problem, int threads, const StopSignal& signal) {
  constexpr std::int64_t kElementsPerThread = 32 * 1024;
  constexpr int kTasksPerThread = 8;
  const BatchShape& rows = problem.rows;
  const std::int64_t columns = problem.columns;
  if (rows.count == 0 || columns == 0) return;
  const Kernels& kernels = kernels_for(active_target(), problem.scalar);
  const double elements = static_cast<double>(rows.count) * static_cast<double>(columns);
  threads = static_cast<int>(
      std::clamp(elements / kElementsPerThread, 1.0, static_cast<double>(std::max(threads, 1))));

  const std::int64_t elements_per_task = static_cast<std::int64_t>(
      std::clamp(elements / (kTasksPerThread * threads), static_cast<double>(kFewElements),
                 static_cast<double>(kManyElements)));

  StageRows part{};
  part.input_stride = stride_of_rows(problem.input, rows);
  part.mask_stride = stride_of_rows(problem.mask, rows);
  part.output_stride = stride_of_rows(problem.output, rows);
  // Consecutive rows belong to the last axis.
  const std::int64_t run = rows.axes > 0 ? rows.sizes[rows.axes - 1] : 1;
  const bool are_side_by_side = part.input_stride == 1 && part.output_stride == 1;
  std::int64_t rows_per_task = std::max<std::int64_t>(1, elements_per_task / columns);
  if (are_side_by_side) rows_per_task = ceil_div(rows_per_task, kWholeVectors) * kWholeVectors;
  const bool may_cut_columns = problem.stage != Stage::softmax;
  const std::int64_t whole_vectors = elements_per_task / kWholeVectors * kWholeVectors;
  const std::int64_t columns_per_task = may_cut_columns ? std::min(columns, whole_vectors) : columns;
  const std::int64_t row_parts = ceil_div(run, rows_per_task), column_parts = ceil_div(columns, columns_per_task);
  const std::int64_t tasks = rows.count / run * row_parts * column_parts;
  parallel_for(threads, tasks, signal, [&](std::int64_t index, Worker&) {
    const std::int64_t column_part = index % column_parts, row_part = index / column_parts % row_parts;
    const std::int64_t first = row_part * rows_per_task;
    const BatchIndex at(rows, index / column_parts / row_parts * run + first);
    StageRows task = part;
    task.input = at.in(problem.input);
    task.mask = at.in(problem.mask);
    task.output = at.in(problem.output);
    task.count = std::min(run - first, rows_per_task);
    task.column_begin = column_part * columns_per_task;
    task.column_end = std::min(columns, task.column_begin + columns_per_task);
    kernels.rows.stage(problem, task);
  });
}

}  // namespace regard
