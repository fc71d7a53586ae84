#include "compute.hpp"

#include <algorithm>

#include "batch_index.hpp"
#include "split.hpp"
#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {
namespace {

// With fewer rows per task, copying b would not pay off.
constexpr std::int64_t kFewRows = 96;
// The largest size of a wave: 4 MB of a and of b each (float), which fit in the cache shared by all
// cores.
constexpr std::int64_t kWaveRows = 2048;
constexpr std::int64_t kWaveColumns = 2048;
constexpr std::int64_t kWaveDepth = 512;
// Threads wait for each other twice per wave. A batch of products with fewer multiplications than
// this is better distributed without waves.
constexpr double kWorkOfWaves = 1e8;

// How rows and columns are divided into tasks. Large tasks copy less; small tasks balance better.
struct TaskSize {
  std::int64_t rows;
  std::int64_t columns;
};

TaskSize task_size(const MatmulKernels& kernels, std::int64_t rows, std::int64_t columns, std::int64_t copies,
                   int threads) {
  constexpr std::int64_t kTasksPerThread = 4;
  TaskSize size{std::min(kernels.task_rows, rows), kernels.task_columns};
  const auto tasks = [&] { return copies * ceil_div(rows, size.rows) * ceil_div(columns, size.columns); };
  while (threads > 1 && tasks() < kTasksPerThread * threads) {
    if (size.rows > kFewRows)
      size.rows = ceil_div(size.rows, 2);
    else if (size.columns > kernels.panel_columns)
      size.columns = ceil_div(size.columns / kernels.panel_columns, 2) * kernels.panel_columns;
    else
      break;
  }
  return size;
}

double work_of(const MatmulProblem& problem) {
  return static_cast<double>(problem.batch.count) * static_cast<double>(problem.rows) *
         static_cast<double>(problem.columns) * static_cast<double>(std::max<std::int64_t>(problem.depth, 1));
}

MatmulTask task_of(const MatmulProblem& problem, const BatchIndex& batch) {
  MatmulTask task{};
  task.a = batch.in(problem.a);
  task.b = batch.in(problem.b);
  task.c = batch.in(problem.c);
  return task;
}

// Each task packs what it reads.
void multiply_apart(const MatmulProblem& problem, const MatmulKernels& kernels, int threads,
                    const StopSignal& signal) {
  const TaskSize size = task_size(kernels, problem.rows, problem.columns, problem.batch.count, threads);
  const double work_of_block = static_cast<double>(size.columns * kernels.depth) *
                               static_cast<double>(std::min(size.rows, problem.rows));
  const std::int64_t interval = interval_of(kernels.depth, work_of_block);
  const std::int64_t column_parts = ceil_div(problem.columns, size.columns);
  const std::int64_t row_parts = ceil_div(problem.rows, size.rows);
  const std::int64_t tasks = problem.batch.count * row_parts * column_parts;
  threads = static_cast<int>(std::min<std::int64_t>(threads, tasks));

  const Scratch scratch(threads, kernels.workspace_bytes(problem));
  parallel_for(threads, tasks, Handout::by_range, signal, [&](std::int64_t index, Worker& worker) {
    const std::int64_t column_part = index % column_parts;
    const std::int64_t row_part = index / column_parts % row_parts;
    MatmulTask task = task_of(problem, BatchIndex(problem.batch, index / column_parts / row_parts));
    task.row_begin = row_part * size.rows;
    task.row_end = std::min(problem.rows, task.row_begin + size.rows);
    task.column_begin = column_part * size.columns;
    task.column_end = std::min(problem.columns, task.column_begin + size.columns);
    do {
      task.depth_end = std::min(problem.depth, task.depth_begin + interval);
      kernels.run(problem, task, scratch.of(worker));
      task.depth_begin = task.depth_end;
    } while (task.depth_begin < problem.depth && !worker.should_stop());
  });
}

// One wave: all threads pack, then all multiply.
class WaveRunner {
 public:
  WaveRunner(const MatmulProblem& problem, const MatmulKernels& kernels, int threads, const StopSignal& signal)
      : problem_(problem), kernels_(kernels), threads_(threads), signal_(signal),
        scratch_(threads, kernels.workspace_bytes(problem)) {}

  void run(const MatmulTask& entry, const MatmulWave& wave) {
    pack(entry, wave);
    multiply(entry, wave);
  }

 private:
  void pack(const MatmulTask& entry, const MatmulWave& wave) {
    const std::int64_t columns = kernels_.panel_columns;
    const std::int64_t blocks = ceil_div(wave.depth_end - wave.depth_begin, kernels_.depth);
    const std::int64_t column_parts = ceil_div(wave.column_end - wave.column_begin, columns);
    const auto row_parts_of = [&](std::int64_t rows) { return ceil_div(wave.row_end - wave.row_begin, rows); };
    std::int64_t rows = kernels_.task_rows;
    // Down to the size of a panel, if many threads would otherwise wait for the one that packs the
    // most.
    while (rows > std::max(columns, kernels_.tile_rows) &&
           blocks * (row_parts_of(rows) + column_parts) < kTasksPerThread * threads_)
      rows = ceil_div(rows, 2 * kernels_.tile_rows) * kernels_.tile_rows;
    const std::int64_t row_parts = row_parts_of(rows);
    const std::int64_t tasks = blocks * (row_parts + column_parts);
    parallel_for(threads_, tasks, Handout::by_range, signal_, [&](std::int64_t index, Worker&) {
      MatmulTask task = entry;
      task.depth_begin = wave.depth_begin + index % blocks * kernels_.depth;
      task.depth_end = std::min(wave.depth_end, task.depth_begin + kernels_.depth);
      // Rows and columns alternate, so that a thread packs the rows that it multiplies later.
      const std::int64_t turn = index / blocks, parts = row_parts + column_parts;
      const std::int64_t part = turn * row_parts / parts;
      if ((turn + 1) * row_parts / parts > part) {
        task.row_begin = wave.row_begin + part * rows;
        task.row_end = std::min(wave.row_end, task.row_begin + rows);
        kernels_.pack_rows(problem_, task, wave);
      } else {
        task.column_begin = wave.column_begin + (turn - part) * columns;
        task.column_end = std::min(wave.column_end, task.column_begin + columns);
        kernels_.pack_panels(problem_, task, wave);
      }
    });
  }

  void multiply(const MatmulTask& entry, const MatmulWave& wave) {
    const std::int64_t wave_rows = wave.row_end - wave.row_begin;
    const std::int64_t wave_columns = wave.column_end - wave.column_begin;
    TaskSize size = task_size(kernels_, wave_rows, wave_columns, 1, threads_);
    size.rows = ceil_div(size.rows, kernels_.tile_rows) * kernels_.tile_rows;
    const std::int64_t column_parts = ceil_div(wave_columns, size.columns);
    const std::int64_t tasks = column_parts * ceil_div(wave_rows, size.rows);
    parallel_for(threads_, tasks, Handout::by_range, signal_, [&](std::int64_t index, Worker& worker) {
      MatmulTask task = entry;
      task.row_begin = wave.row_begin + index / column_parts * size.rows;
      task.row_end = std::min(wave.row_end, task.row_begin + size.rows);
      task.column_begin = wave.column_begin + index % column_parts * size.columns;
      task.column_end = std::min(wave.column_end, task.column_begin + size.columns);
      kernels_.run_wave(problem_, task, wave, scratch_.of(worker));
    });
  }

  const MatmulProblem& problem_;
  const MatmulKernels& kernels_;
  int threads_;
  const StopSignal& signal_;
  Scratch scratch_;
};

void multiply_in_waves(const MatmulProblem& problem, const MatmulKernels& kernels, int threads,
                       const StopSignal& signal) {
  const MatmulWave largest{.row_begin = 0, .row_end = std::min(kWaveRows, problem.rows),
                           .column_begin = 0, .column_end = std::min(kWaveColumns, problem.columns),
                           .depth_begin = 0, .depth_end = std::min(kWaveDepth, problem.depth),
                           .rows = nullptr, .panels = nullptr};
  const Scratch rows(1, kernels.wave_rows_bytes(largest)), panels(1, kernels.wave_panels_bytes(largest));
  WaveRunner runner(problem, kernels, threads, signal);
  MatmulWave wave = largest;
  wave.rows = rows.at(0);
  wave.panels = panels.at(0);
  for (std::int64_t entry = 0; entry < problem.batch.count; ++entry) {
    const MatmulTask task = task_of(problem, BatchIndex(problem.batch, entry));
    for (wave.row_begin = 0; wave.row_begin < problem.rows; wave.row_begin = wave.row_end) {
      wave.row_end = std::min(problem.rows, wave.row_begin + kWaveRows);
      for (wave.column_begin = 0; wave.column_begin < problem.columns; wave.column_begin = wave.column_end) {
        wave.column_end = std::min(problem.columns, wave.column_begin + kWaveColumns);
        for (wave.depth_begin = 0; wave.depth_begin < problem.depth; wave.depth_begin = wave.depth_end) {
          wave.depth_end = std::min(problem.depth, wave.depth_begin + kWaveDepth);
          runner.run(task, wave);
        }
      }
    }
  }
}

}  // namespace

void matrix_product(const MatmulProblem& problem, int threads, const StopSignal& signal) {
  if (problem.batch.count == 0 || problem.rows == 0 || problem.columns == 0) return;
  const MatmulKernels& kernels = kernels_for(active_target(), problem.scalar).matmul;
  threads = threads_for(work_of(problem), threads);
  const bool shares = problem.rows > kernels.task_rows && problem.columns > kernels.task_columns &&
                      work_of(problem) / static_cast<double>(problem.batch.count) >= kWorkOfWaves;
  if (shares && !kernels.takes_few_rows(problem))
    multiply_in_waves(problem, kernels, threads, signal);
  else
    multiply_apart(problem, kernels, threads, signal);
}

}  // namespace regard
