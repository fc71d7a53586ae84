#include "plan.hpp"

#include <algorithm>
#include <atomic>
#include <string_view>

#include "../cpu_features.hpp"
#include "../no_memory.hpp"
#include "../split.hpp"
#include "../targets.hpp"
#include "../threads/scratch.hpp"
#include "chunks.hpp"
#include "int8.hpp"
#include "run_task.hpp"

namespace regard {
namespace {

// 4-bit numbers are decoded in place: only whole steps of them, in pages.
bool can_decode(const AttentionProblem& problem, const Kernels& kernels) {
  if (problem.key.element != Element::q4_1) return true;
  const std::int64_t rows = problem.page_rows;
  return kernels.decode.reads_four_bits && rows > 0 && rows % kernels.decode.kernel.tile_keys == 0;
}

// At this limit, a strip of queries takes 64 TiB. Below it, sizes in bytes need not be checked one
// by one.
constexpr std::int64_t kLargestDim = std::int64_t{1} << 40;

bool is_empty(const AttentionProblem& problem) {
  return problem.batch.count == 0 || problem.heads == 0 || problem.q_len == 0;
}

// With few rows, keys and values are read faster if keys are in lanes. Both kernels return the same
// bits. Training drops weights and never decodes.
bool is_decode(const AttentionProblem& problem, const Kernels& kernels) {
  return has_few_rows(problem, kernels) && !problem.weights.data && problem.dropout_factor == 0;
}

// Intel's CPUs need two cycles for vdpbf16ps and one for two float32 multiply-adds
// (docs/lab-notes.md).
bool is_faster_in_bfloat16(const Kernels& kernels) {
  const char* const instruction = kernels.bfloat16.instruction;
  if (!instruction || !cpu_has(instruction)) return false;
  return !cpu_is_intel() || std::string_view(instruction) != "avx512_bf16";
}

void choose_kernel(AttentionPlan& plan) {
  const AttentionProblem& problem = *plan.problem;
  const Kernels& kernels = *plan.kernels;
  const auto choose = [&](AttentionMethod method, const AttentionKernel& kernel) {
    plan.method = method;
    plan.kernel = &kernel;
  };
  if (problem.precision == Precision::int8 && is_faster_in_int8(kernels))
    choose(AttentionMethod::int8, kernels.int8.attention);
  else if (multiplies_bfloat16(problem, kernels))
    choose(AttentionMethod::bfloat16, kernels.bfloat16.attention);
  else if (is_decode(problem, kernels))
    choose(AttentionMethod::decode, kernels.decode.kernel);
  else
    choose(AttentionMethod::forward, kernels.attention.forward);
}

bool has_few_rows_in(const AttentionProblem& problem, const Kernels& kernels, std::int64_t entry) {
  const std::int64_t rows = rows_of(problem, entry);
  return rows > 0 && rows <= kernels.decode.most_rows;
}

// Whether entries with few rows decode although others have many, as when a call contains a prompt
// and texts that grow by one token. With bfloat16 products, they do so only in a cache: elsewhere a
// backward call may follow, which has a single precision.
bool decodes_some(const AttentionPlan& plan) {
  const AttentionProblem& problem = *plan.problem;
  if (!problem.query_starts || problem.weights.data || problem.dropout_factor != 0) return false;
  if (!can_decode(problem, *plan.kernels)) return false;
  return plan.method == AttentionMethod::forward ||
         (plan.method == AttentionMethod::bfloat16 && problem.pages != nullptr);
}

}  // namespace

const AttentionKernel& AttentionPlan::kernel_of(std::int64_t entry) const {
  return kernel_of_few_rows && has_few_rows_in(*problem, *kernels, entry) ? *kernel_of_few_rows : *kernel;
}

std::int64_t entries_of_few_rows(const AttentionPlan& plan) {
  if (!plan.kernel_of_few_rows) return 0;
  std::int64_t count = 0;
  for (std::int64_t entry = 0; entry < plan.problem->batch.count; ++entry)
    count += has_few_rows_in(*plan.problem, *plan.kernels, entry);
  return count;
}

bool has_few_rows(const AttentionProblem& problem, const Kernels& kernels) {
  return can_decode(problem, kernels) && !is_empty(problem) &&
         problem.heads / problem.kv_heads * problem.q_len <= kernels.decode.most_rows;
}

bool multiplies_bfloat16(const AttentionProblem& problem, const Kernels& kernels) {
  return problem.precision == Precision::bfloat16 && !is_quantized(problem.key.element) &&
         !has_few_rows(problem, kernels) && is_faster_in_bfloat16(kernels);
}

void check_dims(std::int64_t head_dim, std::int64_t value_dim, Scalar scalar) {
  const std::int64_t dim = std::max(head_dim, value_dim);
  if (dim <= kLargestDim) return;
  const std::int64_t element = scalar == Scalar::float64 ? 8 : 4;
  throw NoMemory(std::min(dim, INT64_MAX / element) * element, "workspace for each row of a strip");
}

double most_keys_of_row(const AttentionProblem& problem) {
  const double keys = static_cast<double>(problem.kv_len);
  if (problem.window_left == kUnbounded || problem.window_right == kUnbounded) return keys;
  return std::min(keys, static_cast<double>(problem.window_left) +
                            static_cast<double>(problem.window_right) + 1 +
                            static_cast<double>(problem.keep_first));
}

double work_of(const AttentionProblem& problem) {
  const double rows = static_cast<double>(problem.batch.count) *
                      static_cast<double>(problem.heads) * static_cast<double>(problem.q_len);
  return rows * most_keys_of_row(problem) *
         static_cast<double>(problem.head_dim + problem.value_dim);
}

namespace {

// The largest workspace that a kernel of the plan needs.
std::int64_t workspace_of_task(const AttentionPlan& plan, const AttentionProblem& problem) {
  const std::int64_t bytes = plan.kernel->pass.workspace_bytes(problem, plan.tasks->most_rows());
  if (!plan.kernel_of_few_rows) return bytes;
  return std::max(bytes, plan.kernel_of_few_rows->pass.workspace_bytes(problem, plan.kernels->decode.most_rows));
}

}  // namespace

AttentionPlan plan_attention(const AttentionProblem& problem, int threads) {
  AttentionPlan plan{};
  plan.problem = &problem;
  plan.target = &active_target();
  plan.kernels = &kernels_for(*plan.target, problem.scalar);
  choose_kernel(plan);
  if (is_empty(problem)) {
    plan.method = AttentionMethod::none;
    return plan;
  }
  check_dims(problem);

  const Kernels& kernels = *plan.kernels;
  if (decodes_some(plan)) {
    plan.kernel_of_few_rows = &kernels.decode.kernel;
    if (entries_of_few_rows(plan) == 0) plan.kernel_of_few_rows = nullptr;
  }
  plan.work = work_of(problem);
  threads = threads_for(plan.work, threads);
  const AttentionTasks& tasks = plan.tasks.emplace(problem, kernels, threads);
  const double work_of_block = static_cast<double>(tasks.most_rows()) *
                               static_cast<double>(problem.head_dim + problem.value_dim) *
                               static_cast<double>(kernels.attention.block_keys);
  plan.interval = interval_of(kernels.attention.block_keys, work_of_block);
  plan.bytes_of_workspace = workspace_of_task(plan, problem);
  plan.shares_chunks = plan.method != AttentionMethod::int8 && !plan.kernel_of_few_rows && !problem.weights.data &&
                       shares_chunks(problem, kernels, tasks, threads);
  if (plan.shares_chunks) {
    plan.threads = threads;
    plan.workspaces = chunk_workspaces(problem, kernels, tasks, threads);
    return plan;
  }
  plan.threads = static_cast<int>(std::min<std::int64_t>(threads, tasks.count()));
  plan.workspaces = plan.threads;
  if (plan.method == AttentionMethod::int8) plan.waves.emplace(problem, kernels, tasks, plan.threads);
  return plan;
}

namespace {

// Whether all kv heads of an entry would compute the same tiles. When decoding with slopes, the
// tiles depend on these too.
bool heads_are_alike(const AttentionProblem& problem, const AttentionPlan& plan) {
  const bool decodes = plan.kernel == &plan.kernels->decode.kernel || plan.kernel_of_few_rows;
  const bool has_slopes = problem.alibi_slopes.data && decodes;
  const bool has_sparse_heads = problem.sparse_mask && problem.sparse_mask->starts.head_stride != 0;
  return problem.mask.head_stride == 0 && problem.bias.head_stride == 0 && problem.distance_bias.head_stride == 0 &&
         !has_sparse_heads && !has_slopes;
}

}  // namespace

TileCounts count_tiles(const AttentionPlan& plan, const StopSignal& signal) {
  if (!plan.tasks) return {};
  // Counting reads no column of an array, so its workspace needs no room for columns.
  AttentionProblem counted = *plan.problem;
  counted.head_dim = counted.value_dim = 1;
  const AttentionTasks& tasks = *plan.tasks;
  const bool is_one_for_all = heads_are_alike(counted, plan);
  const std::int64_t alike = is_one_for_all ? counted.kv_heads : 1;
  const Scratch scratch(plan.threads, workspace_of_task(plan, counted));
  std::atomic<std::int64_t> all{0}, visible{0}, biased{0}, scores{0}, chunks{0};
  parallel_for(plan.threads, tasks.count() / alike, signal, [&](std::int64_t index, Worker& worker) {
    const AttentionTask task = is_one_for_all ? tasks.at_first_head(index) : tasks.at(index);
    const AttentionKernel& kernel = plan.kernel_of(task.entry);
    TileCounts counts{};
    const SeenKeys seen = kernel.begin_count(counted, task, counts, scratch.of(worker));
    for (KeyInterval keys : {seen.keep_first, seen.window})
      while (keys.begin < keys.end && !worker.should_stop())
        keys.begin = kernel.count(counted, task, keys, counts, scratch.of(worker));
    all += counts.all;
    visible += counts.visible;
    biased += counts.biased;
    scores += counts.scores;
    chunks += counts.chunks;
  });
  return {all * alike, visible * alike, biased * alike, scores * alike, chunks * alike};
}

namespace {

// Whether a decode prefetches the keys of a later task: unless L2 has room for those of all tasks.
bool prefetches_tasks(const AttentionPlan& plan) {
  const AttentionProblem& problem = *plan.problem;
  const double keys = static_cast<double>(problem.batch.count * problem.kv_heads) * most_keys_of_row(problem);
  const double bytes = keys * sizeof(float) * static_cast<double>(problem.head_dim + problem.value_dim);
  return plan.method == AttentionMethod::decode && bytes > static_cast<double>(problem.l2_bytes);
}

// Whether all entries have rows at the same places. In pages, or ragged, a later entry need not have
// rows where this one has some.
bool has_equal_entries(const AttentionProblem& problem) { return !problem.pages && !problem.key_starts; }

void run_tasks(const AttentionPlan& plan, const StopSignal& signal) {
  const Scratch scratch(plan.threads, plan.bytes_of_workspace);
  const bool prefetches = prefetches_tasks(plan);
  parallel_for(plan.threads, plan.tasks->count(), signal, [&](std::int64_t index, Worker& worker) {
    AttentionTask task = plan.tasks->at(index);
    AttentionTask next;
    if (prefetches && index + plan.threads < plan.tasks->count()) {
      next = plan.tasks->at(index + plan.threads);
      if (next.entry == task.entry || has_equal_entries(*plan.problem)) task.next = &next;
    }
    run_task(plan.kernel_of(task.entry), *plan.problem, task, plan.interval, worker, scratch.of(worker));
  });
}

}  // namespace

void run_attention(const AttentionPlan& plan, const StopSignal& signal) {
  if (plan.shares_chunks) return attention_in_chunks(plan, signal);
  switch (plan.method) {
    case AttentionMethod::none:
      return;
    case AttentionMethod::forward:
    case AttentionMethod::decode:
    case AttentionMethod::bfloat16:
      return run_tasks(plan, signal);
    case AttentionMethod::int8:
      return attention_in_int8(plan, signal);
  }
}

}  // namespace regard
