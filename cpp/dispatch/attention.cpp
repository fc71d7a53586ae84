#include "attention.hpp"

#include <algorithm>
#include <atomic>

#include "attention_chunks.hpp"
#include "attention_int8.hpp"
#include "attention_run.hpp"
#include "attention_tasks.hpp"
#include "no_memory.hpp"
#include "split.hpp"
#include "targets.hpp"

namespace regard {
namespace {

// Beyond this a strip of queries alone is 64 TiB, and sizes in bytes need not be checked one by one.
constexpr std::int64_t kLargestDim = std::int64_t{1} << 40;

bool is_empty(const AttentionProblem& problem) {
  return problem.batch.count == 0 || problem.heads == 0 || problem.q_len == 0;
}

// Throws NoMemory where the workspace's size in bytes might not fit in 64 bits.
void check_dims(const AttentionProblem& problem) {
  const std::int64_t dim = std::max(problem.head_dim, problem.value_dim);
  if (dim <= kLargestDim) return;
  const std::int64_t element = problem.scalar == Scalar::float64 ? 8 : 4;
  throw NoMemory(std::min(dim, INT64_MAX / element) * element, "workspace for each row of a strip");
}

// The keys that the row with the most of them sees by position.
double most_keys_of_row(const AttentionProblem& problem) {
  const double keys = static_cast<double>(problem.kv_len);
  if (problem.window_left == kUnbounded || problem.window_right == kUnbounded) return keys;
  return std::min(keys, static_cast<double>(problem.window_left) +
                            static_cast<double>(problem.window_right) + 1);
}

int threads_of(const AttentionProblem& problem, int threads) {
  const double rows = static_cast<double>(problem.batch.count) *
                      static_cast<double>(problem.heads) * static_cast<double>(problem.q_len);
  const double work_of_row = most_keys_of_row(problem) *
                             static_cast<double>(problem.head_dim + problem.value_dim);
  return threads_for(rows * work_of_row, threads);
}

// Few rows read keys and values faster with keys in lanes. Both kernels give the same bits.
bool is_decode(const AttentionProblem& problem, const Kernels& kernels) {
  return !is_empty(problem) && !problem.weights.data && problem.precision == Precision::full &&
         problem.heads / problem.kv_heads * problem.q_len <= kernels.decode.most_rows;
}

}  // namespace

void attention_forward(const AttentionProblem& problem, int threads, const StopSignal& signal) {
  const Kernels& kernels = kernels_for(active_target(), problem.scalar);
  if (is_empty(problem)) return;
  check_dims(problem);

  threads = threads_of(problem, threads);
  const AttentionTasks tasks(problem, kernels, threads);
  const double work_of_block = static_cast<double>(tasks.most_rows()) *
                               static_cast<double>(problem.head_dim + problem.value_dim) *
                               static_cast<double>(kernels.attention.block_keys);
  const std::int64_t interval = interval_of(kernels.attention.block_keys, work_of_block);

  const bool decodes = is_decode(problem, kernels);
  if (decodes && shares_chunks(problem, kernels, tasks, threads))
    return decode_in_chunks(problem, kernels, tasks, threads, interval, signal);

  threads = static_cast<int>(std::min<std::int64_t>(threads, tasks.count()));
  if (problem.precision == Precision::int8)
    return attention_in_int8(problem, kernels, tasks, threads, interval, signal);
  const AttentionKernel& kernel = decodes ? kernels.decode.kernel : kernels.attention.forward;
  const AttentionRun run{kernel, kernels.attention.write_weights, interval};
  const Scratch scratch(threads, kernel.workspace_bytes(problem, tasks.most_rows()));
  parallel_for(threads, tasks.count(), signal, [&](std::int64_t index, Worker& worker) {
    run_task(problem, tasks.at(index), run, worker, scratch.of(worker));
  });
}

AttentionPlan plan_attention(const AttentionProblem& problem, int threads,
                             const StopSignal& signal) {
  const Target& target = active_target();
  const Kernels& kernels = kernels_for(target, problem.scalar);
  AttentionPlan plan{};
  plan.target = target.name;
  plan.block_keys = kernels.attention.block_keys;
  plan.is_decode = is_decode(problem, kernels);
  plan.is_int8 = problem.precision == Precision::int8;
  const AttentionKernel& kernel = plan.is_int8     ? int8_attention_of(kernels).kernel
                                  : plan.is_decode ? kernels.decode.kernel
                                                   : kernels.attention.forward;
  if (plan.is_int8) plan.int8_instruction = int8_attention_of(kernels).instruction;
  plan.copies_keys = kernel.copies_keys(problem);
  plan.copies_values = kernel.copies_values(problem);
  plan.columns = kernel.columns;
  plan.strip_rows = kernel.tile_rows;
  plan.tile_keys = kernel.tile_keys;
  if (is_empty(problem)) return plan;
  check_dims(problem);

  threads = threads_of(problem, threads);
  const AttentionTasks tasks(problem, kernels, threads);
  plan.threads = static_cast<int>(std::min<std::int64_t>(threads, tasks.count()));
  plan.tasks = tasks.count();
  plan.task_rows = std::min(tasks.most_rows(), problem.heads / problem.kv_heads * problem.q_len);
  if (plan.is_decode) plan.strip_rows = plan.task_rows;
  const std::int64_t bytes = kernel.workspace_bytes(problem, tasks.most_rows());
  plan.workspace_bytes = plan.threads * bytes;
  if (plan.is_int8)
    plan.workspace_bytes += Int8Waves(problem, kernels, tasks, plan.threads).bytes();

  // Counting reads no column of an array: its workspace need not have room for any.
  AttentionProblem counted = problem;
  counted.head_dim = counted.value_dim = 1;
  const Scratch scratch(plan.threads, kernel.workspace_bytes(counted, tasks.most_rows()));
  std::atomic<std::int64_t> all{0}, visible{0}, biased{0}, scores{0}, chunks{0};
  parallel_for(plan.threads, tasks.count(), signal, [&](std::int64_t index, Worker& worker) {
    if (worker.should_stop()) return;
    const TileCounts counts = kernel.count(counted, tasks.at(index), scratch.of(worker));
    all += counts.all;
    visible += counts.visible;
    biased += counts.biased;
    scores += counts.scores;
    chunks += counts.chunks;
  });
  plan.tiles = {all, visible, biased, scores, chunks};
  if (plan.is_decode && chunks > 0 && shares_chunks(problem, kernels, tasks, threads)) {
    plan.chunk_keys = kernels.attention.chunk_keys;
    plan.tasks = chunks;
    plan.threads = static_cast<int>(std::min<std::int64_t>(threads, chunks));
    plan.workspace_bytes = chunk_workspaces(tasks, threads) * bytes;
  }
  return plan;
}

}  // namespace regard
