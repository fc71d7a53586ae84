#include "tasks.hpp"

#include <algorithm>

#include "../split.hpp"

namespace regard {
namespace {

// Enough tasks for each thread that the others do not wait long for the last one: with 24, on
// average 1/48 of the time.
constexpr std::int64_t kTasksPerThread = 24;
// Unless threads would be idle, a task has this many units of rows: it reads all keys for them.
constexpr std::int64_t kFewUnits = 2;
// Reading a key takes about as long as computing with this many rows. Fewer rows cost no less.
constexpr std::int64_t kRowsOfBandwidth = 8;

std::int64_t queries_of(const AttentionProblem& problem, std::int64_t entry) {
  if (!problem.query_starts) return problem.q_len;
  return problem.query_starts[entry + 1] - problem.query_starts[entry];
}

}  // namespace

HeadPlace::HeadPlace(const AttentionProblem& problem, std::int64_t entry, std::int64_t kv_head)
    : batch_(problem.batch, entry), kv_head_(kv_head), head_(kv_head * (problem.heads / problem.kv_heads)),
      first_query_(problem.query_starts ? problem.query_starts[entry] : 0),
      first_key_(problem.key_starts ? problem.key_starts[entry] : 0) {}

std::int64_t keys_of(const AttentionProblem& problem, std::int64_t entry) {
  return problem.key_starts ? problem.key_starts[entry + 1] - problem.key_starts[entry] : problem.kv_len;
}

std::int64_t rows_of(const AttentionProblem& problem, std::int64_t entry) {
  return problem.heads / problem.kv_heads * queries_of(problem, entry);
}

AttentionTask task_of(const AttentionProblem& problem, std::int64_t entry, std::int64_t kv_head,
                      std::int64_t row_begin, std::int64_t row_end) {
  const HeadPlace place(problem, entry, kv_head);
  AttentionTask task{};
  task.query = place.of_queries(problem.query);
  task.key = place.of_keys(problem.key);
  task.value = place.of_keys(problem.value);
  task.key_scales = static_cast<const float*>(place.of_head(problem.key_scales));
  task.value_scales = static_cast<const float*>(place.of_head(problem.value_scales));
  if (problem.key_means) task.key_means = problem.key_means + kv_head * problem.head_dim;
  task.pages = problem.pages ? problem.pages + entry * problem.pages_stride : nullptr;
  task.mask = place.of_queries(problem.mask);
  if (problem.sparse_mask) {
    const SparseMask& mask = *problem.sparse_mask;
    task.mask_starts = static_cast<const std::int64_t*>(place.of_first_head(mask.starts));
    task.mask_query = mask.first_query + mask.query_stride * place.first_query();
  }
  task.bias = place.of_queries(problem.bias);
  task.scales = place.of_heads(problem.scales);
  task.softcaps = place.of_heads(problem.softcaps);
  task.alibi_slopes = place.of_heads(problem.alibi_slopes);
  task.distance_bias = place.of_first_head(problem.distance_bias);
  task.output = place.of_queries(problem.output);
  task.weights = place.of_queries(problem.weights);
  task.lse = place.of_queries(problem.lse);
  task.entry = entry;
  task.first_head = place.head();
  task.kv_len = keys_of(problem, entry);
  if (problem.key_lengths.data) task.kv_len = std::min(task.kv_len, place.batch().in(problem.key_lengths));
  task.query_offset = problem.query_offset.data ? place.batch().in(problem.query_offset)
                                                : task.kv_len - queries_of(problem, entry);
  if (problem.left_padding.data) task.key_begin = std::min(task.kv_len, place.batch().in(problem.left_padding));
  if (problem.evicted_pages.data) task.evicted_pages = place.batch().in(problem.evicted_pages);
  task.row_begin = row_begin;
  task.row_end = row_end;
  return task;
}

AttentionTasks::AttentionTasks(const AttentionProblem& problem, const Kernels& kernels, int threads)
    : problem_(problem), row_unit_(kernels.attention.row_unit(problem)),
      rows_limit_(kernels.attention.task_rows(problem)) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  const std::int64_t heads = problem.batch.count * problem.kv_heads;
  // Rows of one head, on average.
  const std::int64_t rows = problem.query_starts
                                ? ceil_div(group * problem.query_starts[problem.batch.count], problem.batch.count)
                                : group * problem.q_len;
  if (threads > 1) {
    const std::int64_t wanted = ceil_div(kTasksPerThread * threads, heads);
    const std::int64_t units = ceil_div(rows, wanted * row_unit_);
    const std::int64_t least = heads < threads ? 1 : kFewUnits;
    rows_limit_ = std::min(rows_limit_, std::max(units, least) * row_unit_);
  }
  if (!problem.query_starts) {
    count_rows(rows);
    count_ = heads * parts_of(rows);
    return;
  }
  std::vector<double> costs;  // of a task of each entry
  for (std::int64_t entry = 0; entry < problem.batch.count; ++entry) {
    const std::int64_t own = rows_of(problem, entry);
    count_rows(own);
    order_.push_back(entry);
    costs.push_back(cost_of(entry, own));
  }
  std::stable_sort(order_.begin(), order_.end(), [&](std::int64_t a, std::int64_t b) {
    return costs[static_cast<std::size_t>(a)] > costs[static_cast<std::size_t>(b)];
  });
  for (const std::int64_t entry : order_) {
    first_task_.push_back(count_);
    count_ += problem.kv_heads * parts_of(rows_of(problem, entry));
  }
}

double AttentionTasks::cost_of(std::int64_t entry, std::int64_t rows) const {
  const std::int64_t parts = parts_of(rows);
  if (parts == 0) return 0;
  std::int64_t keys = keys_of(problem_, entry);
  if (problem_.key_lengths.data)
    keys = std::min(keys, BatchIndex(problem_.batch, entry).in(problem_.key_lengths));
  return static_cast<double>(keys) * static_cast<double>(std::max(ceil_div(rows, parts), kRowsOfBandwidth));
}

// A last part of less than one unit would read all keys for a few rows, so it is merged into the
// others.
std::int64_t AttentionTasks::parts_of(std::int64_t rows) const {
  if (rows <= rows_limit_) return rows > 0 ? 1 : 0;
  return ceil_div(rows - row_unit_ + 1, rows_limit_);
}

std::int64_t AttentionTasks::begin_of_part(std::int64_t rows, std::int64_t parts, std::int64_t part) const {
  const std::int64_t units = ceil_div(rows, row_unit_);
  // The last parts, which are handed out first, have one more unit.
  const std::int64_t larger = std::max<std::int64_t>(0, part - (parts - units % parts));
  return std::min(rows, (units / parts * part + larger) * row_unit_);
}

void AttentionTasks::count_rows(std::int64_t rows) {
  if (rows > 0) most_rows_ = std::max(most_rows_, ceil_div(ceil_div(rows, row_unit_), parts_of(rows)) * row_unit_);
}

AttentionTasks::Place AttentionTasks::place_of(std::int64_t index) const {
  if (first_task_.empty()) {
    const std::int64_t tasks = count_ / problem_.batch.count;
    return {index / tasks, index % tasks};
  }
  const auto first = std::upper_bound(first_task_.begin(), first_task_.end(), index) - 1;
  return {order_[static_cast<std::size_t>(first - first_task_.begin())], index - *first};
}

// Heads are the outer loop, so that a head's keys stay in cache.
AttentionTask AttentionTasks::at(std::int64_t index) const {
  const Place place = place_of(index);
  const std::int64_t parts = parts_of(rows_of(problem_, place.entry));
  return task_at(place.entry, place.within / parts, place.within % parts);
}

AttentionTask AttentionTasks::at_first_head(std::int64_t index) const {
  const Place place = place_of(index * problem_.kv_heads);
  return task_at(place.entry, 0, place.within / problem_.kv_heads);
}

// Within a head the last rows come first: they are the heaviest when attention is causal.
AttentionTask AttentionTasks::task_at(std::int64_t entry, std::int64_t kv_head, std::int64_t part) const {
  const std::int64_t rows = rows_of(problem_, entry);
  const std::int64_t parts = parts_of(rows);
  const std::int64_t begin = begin_of_part(rows, parts, parts - 1 - part);
  return task_of(problem_, entry, kv_head, begin, begin_of_part(rows, parts, parts - part));
}

}  // namespace regard
