#include "attention.hpp"

#include <algorithm>
#include <new>

#include "batch_offsets.hpp"
#include "split.hpp"
#include "targets.hpp"

namespace regard {
namespace {

// Beyond this a strip of queries alone is 64 TiB, and sizes in bytes need not be checked one by one.
constexpr std::int64_t kLargestDim = std::int64_t{1} << 40;
// Enough tasks a thread that the last one to finish keeps nobody waiting for long.
constexpr std::int64_t kTasksPerThread = 4;

struct Split {
  std::int64_t rows;           // of one kv head: group x q_len
  std::int64_t rows_per_task;  // a multiple of the strip's lanes, or all rows
  std::int64_t tasks_per_head;
  std::int64_t tasks;
};

Split split(const AttentionProblem& problem, const Kernels& kernels, int threads) {
  Split split{};
  split.rows = problem.heads / problem.kv_heads * problem.q_len;
  const std::int64_t heads = problem.batch.count * problem.kv_heads;
  split.rows_per_task = kernels.task_rows;
  if (threads > 1 && heads < kTasksPerThread * threads) {
    const std::int64_t wanted = ceil_div(kTasksPerThread * threads, heads);
    const std::int64_t strips = ceil_div(split.rows, wanted * kernels.strip_lanes);
    split.rows_per_task =
        std::min(kernels.task_rows, std::max<std::int64_t>(strips, 1) * kernels.strip_lanes);
  }
  split.rows_per_task = std::min(split.rows_per_task, split.rows);
  split.tasks_per_head = ceil_div(split.rows, split.rows_per_task);
  split.tasks = heads * split.tasks_per_head;
  return split;
}

double work_of_row(const AttentionProblem& problem) {
  return static_cast<double>(problem.kv_len) *
         static_cast<double>(problem.head_dim + problem.value_dim);
}

// Heads outside, so that a head's keys stay in cache; within one, the last rows first, which are the
// heaviest when attention is causal.
AttentionTask task_at(const AttentionProblem& problem, const Split& split, std::int64_t index) {
  const std::int64_t head_index = index / split.tasks_per_head;
  const std::int64_t part = split.tasks_per_head - 1 - index % split.tasks_per_head;
  const std::int64_t kv_head = head_index % problem.kv_heads;
  const std::int64_t head = kv_head * (problem.heads / problem.kv_heads);
  const BatchIndex batch(problem.batch, head_index / problem.kv_heads);

  const auto of_head = [&](const Operand& operand, std::int64_t number) {
    return advance(locate(batch, operand, problem.scalar), problem.scalar,
                   number * operand.head_stride);
  };
  AttentionTask task{};
  task.query = of_head(problem.query, head);
  task.key = of_head(problem.key, kv_head);
  task.value = of_head(problem.value, kv_head);
  task.mask = advance_mask(locate_mask(batch, problem.mask, problem.mask_kind), problem.mask_kind,
                           head * problem.mask.head_stride);
  task.output = of_head(problem.output, head);
  task.weights = of_head(problem.weights, head);
  task.lse = of_head(problem.lse, head);
  task.query_offset = *batch.in<const std::int64_t>(problem.query_offset);
  task.row_begin = part * split.rows_per_task;
  task.row_end = std::min(split.rows, task.row_begin + split.rows_per_task);
  return task;
}

// Calls body(begin, end) over [0, key_end) in intervals of whole blocks, until told to stop.
template <class Body>
void over_intervals(std::int64_t key_end, std::int64_t interval, Worker& worker, Body body) {
  for (std::int64_t begin = 0; begin < key_end && !worker.should_stop(); begin += interval)
    body(begin, std::min(key_end, begin + interval));
}

}  // namespace

void attention_forward(const AttentionProblem& problem, int threads, const StopSignal& signal) {
  const Kernels& kernels = kernels_for(active_target(), problem.scalar);
  if (problem.batch.count == 0 || problem.heads == 0 || problem.q_len == 0) return;
  if (problem.head_dim > kLargestDim || problem.value_dim > kLargestDim) throw std::bad_alloc();

  const double rows = static_cast<double>(problem.batch.count) *
                      static_cast<double>(problem.heads) * static_cast<double>(problem.q_len);
  const double work = rows * work_of_row(problem);
  threads = threads_for(work, threads);
  const Split parts = split(problem, kernels, threads);
  threads = static_cast<int>(std::min<std::int64_t>(threads, parts.tasks));

  const double work_of_block = static_cast<double>(parts.rows_per_task) *
                               static_cast<double>(problem.head_dim + problem.value_dim) *
                               static_cast<double>(kernels.block_keys);
  const std::int64_t interval = interval_of(kernels.block_keys, work_of_block);

  const Scratch scratch(threads,
                        kernels.attention_workspace_bytes(problem, parts.rows_per_task));
  parallel_for(threads, parts.tasks, signal, [&](std::int64_t index, Worker& worker) {
    const AttentionTask task = task_at(problem, parts, index);
    void* workspace = scratch.of(worker);
    const std::int64_t key_end = kernels.attention_begin(problem, task, workspace);
    over_intervals(key_end, interval, worker, [&](std::int64_t begin, std::int64_t end) {
      kernels.attention_advance(problem, task, begin, end, workspace);
    });
    kernels.attention_finish(problem, task, workspace);
    if (task.weights)
      over_intervals(problem.kv_len, interval, worker, [&](std::int64_t begin, std::int64_t end) {
        kernels.attention_weights(problem, task, begin, end, workspace);
      });
  });
}

}  // namespace regard
