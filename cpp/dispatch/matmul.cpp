#include "matmul.hpp"

#include <algorithm>

#include "batch_index.hpp"
#include "split.hpp"
#include "targets.hpp"

namespace regard {
namespace {

constexpr std::int64_t kTasksPerThread = 4;
// Fewer rows a task would copy b for too little.
constexpr std::int64_t kFewRows = 96;

}  // namespace

void matmul(const MatmulProblem& problem, int threads, const StopSignal& signal) {
  if (problem.batch.count == 0 || problem.rows == 0 || problem.columns == 0) return;
  const MatmulKernels& kernels = kernels_for(active_target(), problem.scalar).matmul;
  const double work = static_cast<double>(problem.batch.count) *
                      static_cast<double>(problem.rows) * static_cast<double>(problem.columns) *
                      static_cast<double>(std::max<std::int64_t>(problem.depth, 1));
  threads = threads_for(work, threads);

  // Large tasks copy less, small ones share out better.
  std::int64_t rows_per_task = std::min(kernels.task_rows, problem.rows);
  std::int64_t columns_per_task = kernels.task_columns;
  const auto tasks_of = [&](std::int64_t rows, std::int64_t columns) {
    return problem.batch.count * ceil_div(problem.rows, rows) * ceil_div(problem.columns, columns);
  };
  while (threads > 1 && tasks_of(rows_per_task, columns_per_task) < kTasksPerThread * threads) {
    if (rows_per_task > kFewRows)
      rows_per_task = ceil_div(rows_per_task, 2);
    else if (columns_per_task > kernels.panel_columns)
      columns_per_task = ceil_div(columns_per_task / kernels.panel_columns, 2) * kernels.panel_columns;
    else
      break;
  }
  const double work_of_block = static_cast<double>(columns_per_task * kernels.depth) *
                               static_cast<double>(std::min(rows_per_task, problem.rows));
  const std::int64_t interval = interval_of(kernels.depth, work_of_block);
  const std::int64_t column_parts = ceil_div(problem.columns, columns_per_task);
  const std::int64_t row_parts = ceil_div(problem.rows, rows_per_task);
  const std::int64_t tasks = tasks_of(rows_per_task, columns_per_task);
  threads = static_cast<int>(std::min<std::int64_t>(threads, tasks));

  const Scratch scratch(threads, kernels.workspace_bytes(problem));
  parallel_for(threads, tasks, signal, [&](std::int64_t index, Worker& worker) {
    const std::int64_t column_part = index % column_parts;
    const std::int64_t row_part = index / column_parts % row_parts;
    const BatchIndex batch(problem.batch, index / column_parts / row_parts);
    MatmulTask task{};
    task.a = batch.in(problem.a);
    task.b = batch.in(problem.b);
    task.c = batch.in(problem.c);
    task.row_begin = row_part * rows_per_task;
    task.row_end = std::min(problem.rows, task.row_begin + rows_per_task);
    task.column_begin = column_part * columns_per_task;
    task.column_end = std::min(problem.columns, task.column_begin + columns_per_task);
    do {
      task.depth_end = std::min(problem.depth, task.depth_begin + interval);
      kernels.run(problem, task, scratch.of(worker));
      task.depth_begin = task.depth_end;
    } while (task.depth_begin < problem.depth && !worker.should_stop());
  });
}

}  // namespace regard
