#include "tasks.hpp"

#include <algorithm>

#include "../batch_index.hpp"
#include "../split.hpp"

namespace regard {
namespace {

// Enough tasks for each thread that the others do not wait long for the last one to finish: with 24, a
// forty-eighth of the time on average.
constexpr std::int64_t kTasksPerThread = 24;
// Unless threads would have nothing to do, a task has this many units of rows: it reads all keys for them.
constexpr std::int64_t kFewUnits = 2;

}  // namespace

AttentionTasks::AttentionTasks(const AttentionProblem& problem, const Kernels& kernels, int threads)
    : problem_(problem), row_unit_(kernels.attention.row_unit(problem)),
      rows_limit_(kernels.attention.task_rows(problem)) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  const std::int64_t heads = problem.batch.count * problem.kv_heads;
  if (threads > 1) {
    const std::int64_t wanted = ceil_div(kTasksPerThread * threads, heads);
    const std::int64_t units = ceil_div(group * problem.q_len, wanted * row_unit_);
    const std::int64_t least = heads < threads ? 1 : kFewUnits;
    rows_limit_ = std::min(rows_limit_, std::max(units, least) * row_unit_);
  }
  if (!problem.query_starts) {
    const std::int64_t rows = group * problem.q_len;
    most_rows_ = rows_of_part(rows, parts_of(rows));
    count_ = heads * parts_of(rows);
    return;
  }
  for (std::int64_t entry = 0; entry < problem.batch.count; ++entry) {
    const std::int64_t rows = rows_of_entry(entry);
    const std::int64_t parts = parts_of(rows);
    if (parts > 0) most_rows_ = std::max(most_rows_, rows_of_part(rows, parts));
    first_task_.push_back(count_);
    count_ += problem.kv_heads * parts;
  }
}

std::int64_t AttentionTasks::queries_of_entry(std::int64_t entry) const {
  if (!problem_.query_starts) return problem_.q_len;
  return problem_.query_starts[entry + 1] - problem_.query_starts[entry];
}

std::int64_t AttentionTasks::rows_of_entry(std::int64_t entry) const {
  return problem_.heads / problem_.kv_heads * queries_of_entry(entry);
}

// A last part of less than one unit would read all keys for a few rows: it joins the others.
std::int64_t AttentionTasks::parts_of(std::int64_t rows) const {
  if (rows <= rows_limit_) return rows > 0 ? 1 : 0;
  return ceil_div(rows - row_unit_ + 1, rows_limit_);
}

std::int64_t AttentionTasks::rows_of_part(std::int64_t rows, std::int64_t parts) const {
  return ceil_div(ceil_div(rows, row_unit_), parts) * row_unit_;
}

// Heads outside, so that a head's keys stay in cache; within one, the last rows first, which are the
// heaviest when attention is causal.
AttentionTask AttentionTasks::at(std::int64_t index) const {
  std::int64_t entry, within;
  if (first_task_.empty()) {
    const std::int64_t tasks = count_ / problem_.batch.count;
    entry = index / tasks;
    within = index % tasks;
  } else {
    const auto after = std::upper_bound(first_task_.begin(), first_task_.end(), index);
    entry = after - first_task_.begin() - 1;
    within = index - first_task_[static_cast<std::size_t>(entry)];
  }
  const std::int64_t rows = rows_of_entry(entry);
  const std::int64_t parts = parts_of(rows);
  const std::int64_t rows_per_part = rows_of_part(rows, parts);
  const std::int64_t part = parts - 1 - within % parts;
  const std::int64_t kv_head = within / parts;
  const std::int64_t head = kv_head * (problem_.heads / problem_.kv_heads);
  const std::int64_t first_query = problem_.query_starts ? problem_.query_starts[entry] : 0;
  const std::int64_t first_key = problem_.key_starts ? problem_.key_starts[entry] : 0;

  const BatchIndex batch(problem_.batch, entry);
  const auto at = [&](const Operand& operand, std::int64_t of_head, std::int64_t row) {
    return advance(batch.in(operand), operand,
                   of_head * operand.head_stride + row * operand.row_stride);
  };
  AttentionTask task{};
  task.query = at(problem_.query, head, first_query);
  task.key = at(problem_.key, kv_head, first_key);
  task.value = at(problem_.value, kv_head, first_key);
  task.key_scales = static_cast<const float*>(at(problem_.key_scales, kv_head, 0));
  task.value_scales = static_cast<const float*>(at(problem_.value_scales, kv_head, 0));
  task.pages = problem_.pages ? problem_.pages + entry * problem_.pages_stride : nullptr;
  task.mask = at(problem_.mask, head, first_query);
  task.bias = at(problem_.bias, head, first_query);
  if (problem_.alibi_slopes.data)
    task.alibi_slopes = batch.in(problem_.alibi_slopes) + head * problem_.alibi_slopes.head_stride;
  task.output = at(problem_.output, head, first_query);
  task.weights = at(problem_.weights, head, first_query);
  task.lse = at(problem_.lse, head, first_query);
  task.first_head = head;
  task.kv_len = problem_.key_starts ? problem_.key_starts[entry + 1] - first_key : problem_.kv_len;
  if (problem_.key_lengths.data) task.kv_len = std::min(task.kv_len, batch.in(problem_.key_lengths));
  task.query_offset = problem_.query_offset.data ? batch.in(problem_.query_offset)
                                                 : task.kv_len - queries_of_entry(entry);
  if (problem_.left_padding.data)
    task.key_begin = std::min(task.kv_len, batch.in(problem_.left_padding));
  if (problem_.evicted_pages.data) task.evicted_pages = batch.in(problem_.evicted_pages);
  task.row_begin = std::min(rows, part * rows_per_part);
  task.row_end = std::min(rows, task.row_begin + rows_per_part);
  return task;
}

}  // namespace regard
