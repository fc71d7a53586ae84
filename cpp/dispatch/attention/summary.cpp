#include "../compute.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../split.hpp"
#include "../targets.hpp"
#include "../threads/scratch.hpp"
#include "plan.hpp"
#include "run_task.hpp"

namespace regard {
namespace {

// The queries of a head are computed in at most this many parts, each with its own column sums.
// These are enough to divide the parts of a single causal head, whose work grows like 1, 3, 5, ...,
// into two or four even shares.
constexpr std::int64_t kMostParts = 8;

// The query heads of a problem's batch entries, one after another, each as a problem of one head.
class SummaryHeads {
 public:
  explicit SummaryHeads(const SummaryProblem& problem) : problem_(problem), single_(problem), by_head_(problem.forward) {
    single_.forward.heads = single_.forward.kv_heads = 1;
    by_head_.kv_heads = by_head_.heads;
  }

  const SummaryProblem& single() const { return single_; }
  std::int64_t count() const { return problem_.forward.batch.count * problem_.forward.heads; }
  std::int64_t rows(std::int64_t index) const { return rows_of(by_head_, index / by_head_.heads); }

  SummaryTask at(std::int64_t index, std::int64_t row_begin, std::int64_t row_end) const {
    const std::int64_t entry = index / by_head_.heads, head = index % by_head_.heads;
    const std::int64_t group = problem_.forward.heads / problem_.forward.kv_heads;
    const HeadPlace place(by_head_, entry, head);
    SummaryTask task{};
    task.forward = task_of(by_head_, entry, head, row_begin, row_end);
    task.forward.key = HeadPlace(problem_.forward, entry, head / group).of_keys(problem_.forward.key);
    for (int i = 0; i < kRowStatistics; ++i) task.statistics[i] = place.of_queries(problem_.statistics[i]);
    task.induction_keys = static_cast<const std::int64_t*>(place.of_queries(problem_.induction_keys));
    task.top_weights = place.of_queries(problem_.top_weights);
    task.top_keys = static_cast<std::int64_t*>(place.of_queries(problem_.top_keys));
    return task;
  }

  // Some rows of a head's map.
  SummaryTask rows_of_map(std::int64_t index, std::int64_t row) const {
    const AttentionMap& map = problem_.map;
    const std::int64_t rows = map.row_end - map.row_begin, end = std::min(row + map.task_height, map.height);
    SummaryTask task = at(index, map.row_begin + row * rows / map.height, map.row_begin + end * rows / map.height);
    const HeadPlace place(by_head_, index / by_head_.heads, index % by_head_.heads);
    task.pixels = static_cast<char*>(place.of_queries(map.pixels)) +
                  row * map.pixels.row_stride * size_of(map.pixels.element);
    task.map_row = row;
    task.map_rows = end - row;
    return task;
  }

  // Sums and counts of a head's keys, in their array's type.
  void write_columns(std::int64_t index, const double* sums, const double* counts) const {
    const std::int64_t entry = index / by_head_.heads, head = index % by_head_.heads;
    const HeadPlace place(problem_.forward, entry, 0);
    const auto write = [&](const Operand& operand, auto number_of) {
      if (!operand.data) return;
      const std::int64_t bytes = size_of(operand.element);
      char* to = static_cast<char*>(place.of_keys(operand)) + head * operand.head_stride * bytes;
      for (std::int64_t key = 0; key < keys_of(problem_.forward, entry); ++key, to += operand.row_stride * bytes) {
        const double number = number_of(key);
        const auto single = static_cast<float>(number);
        if (operand.element == Element::float64)
          std::memcpy(to, &number, sizeof number);
        else
          std::memcpy(to, &single, sizeof single);
      }
    };
    write(problem_.column_sums, [&](std::int64_t key) { return sums[key]; });
    write(problem_.column_means, [&](std::int64_t key) { return counts[key] > 0 ? sums[key] / counts[key] : 0.0; });
  }

 private:
  const SummaryProblem& problem_;
  SummaryProblem single_;
  AttentionProblem by_head_;
};

// How a head's queries are divided: into parts, and each part into tasks of `task_rows`. The
// division depends only on the number of queries.
struct Parts {
  std::int64_t task_rows;
  std::int64_t part_rows;

  Parts(const SummaryProblem& single, const AttentionKernels& kernels, std::int64_t rows) {
    task_rows = kernels.task_rows(single.forward);
    const std::int64_t unit = kernels.row_unit(single.forward);
    // A part of a short head may be smaller than a task.
    const std::int64_t units = std::max<std::int64_t>(1, ceil_div(rows, unit));
    part_rows = ceil_div(units, std::min(kMostParts, units)) * unit;
    if (part_rows > task_rows) part_rows = ceil_div(part_rows, task_rows) * task_rows;
    task_rows = std::min(task_rows, part_rows);
  }
};

struct SummaryPart {
  std::int64_t head;
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t columns;  // offset of its sums in the wave's memory, in numbers
};

void run_summary(const SummaryKernels& kernel, const SummaryProblem& single, const SummaryTask& task,
                 std::int64_t interval, Worker& worker, void* workspace, RowsDone& rows_done) {
  run_pass(kernel, single, task, interval, worker, workspace);
  rows_done.done.fetch_add(task.forward.row_end - task.forward.row_begin, std::memory_order_relaxed);
}

// Keys between two checks of the stop signal.
std::int64_t interval_for(const SummaryProblem& problem, const Kernels& kernels, std::int64_t rows) {
  return interval_of(kernels.attention.block_keys, static_cast<double>(rows) *
                                                       static_cast<double>(problem.forward.head_dim) *
                                                       static_cast<double>(kernels.attention.block_keys));
}

struct SummaryWave {
  std::vector<SummaryPart> parts;
  std::vector<std::int64_t> first_part;  // of each head from `first_head` on, followed by the number of parts
  std::int64_t first_head;
  std::int64_t numbers = 0;
};

// Number of map rows in a task. Its strips are full if it has as many queries as a task of the
// forward call. Smaller tasks keep all threads busy, and their pixels fit in a cache. The choice
// does not depend on the number of threads, since it determines the order in which a pixel's
// weights are added.
std::int64_t task_height(const AttentionMap& map, std::int64_t most_queries) {
  constexpr std::int64_t kLeastTasks = 16;  // of a head
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 19;
  const std::int64_t queries = std::min(most_queries, ceil_div(map.row_end - map.row_begin, kLeastTasks));
  const std::int64_t rows = queries * map.height / (map.row_end - map.row_begin);
  return std::clamp<std::int64_t>(std::min(rows, kMostPixels / map.width), 1, map.height);
}

}  // namespace

std::int64_t rows_of_all_heads(const SummaryProblem& problem) {
  const SummaryHeads heads(problem);
  std::int64_t rows = 0;
  for (std::int64_t head = 0; head < heads.count(); ++head) rows += heads.rows(head);
  return rows;
}

void summarize_attention(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows_done) {
  const AttentionProblem& forward = problem.forward;
  if (forward.batch.count == 0 || forward.heads == 0) return;
  check_dims(forward);
  const Kernels& kernels = kernels_for(active_target(), forward.scalar);
  const SummaryKernels& kernel = kernels.summary;
  const SummaryHeads heads(problem);
  const SummaryProblem& single = heads.single();
  threads = threads_for(work_of(forward), threads);
  const bool wants_columns = problem.column_sums.data || problem.column_means.data;

  std::vector<SummaryWave> waves;
  std::int64_t most_rows = 0, most_numbers = 0;
  for (std::int64_t head = 0; head < heads.count(); ++head) {
    const std::int64_t rows = heads.rows(head), kv_len = keys_of(forward, head / forward.heads);
    const Parts cut(single, kernels.attention, rows);
    const std::int64_t parts = ceil_div(rows, cut.part_rows);
    const std::int64_t numbers = wants_columns ? 2 * kv_len * std::max<std::int64_t>(parts, 1) : 0;
    if (waves.empty() || (waves.back().numbers > 0 && is_wave_full(8 * (waves.back().numbers + numbers),
                                                                   static_cast<std::int64_t>(waves.back().parts.size()),
                                                                   threads))) {
      waves.emplace_back();
      waves.back().first_head = head;
    }
    SummaryWave& wave = waves.back();
    wave.first_part.push_back(static_cast<std::int64_t>(wave.parts.size()));
    for (std::int64_t i = parts - 1; i >= 0; --i)  // the heaviest first if attention is causal
      wave.parts.push_back({head, i * cut.part_rows, std::min(rows, (i + 1) * cut.part_rows),
                            wave.numbers + 2 * kv_len * i});
    wave.numbers += numbers;
    most_rows = std::max(most_rows, std::min(rows, cut.task_rows));
    most_numbers = std::max(most_numbers, wave.numbers);
  }
  const std::int64_t interval = interval_for(problem, kernels, most_rows);
  const Scratch scratch(threads, kernel.workspace_bytes(single, most_rows));
  const Scratch columns(1, std::max<std::int64_t>(most_numbers, 1) * 8);
  double* const memory = static_cast<double*>(columns.at(0));

  for (SummaryWave& wave : waves) {
    wave.first_part.push_back(static_cast<std::int64_t>(wave.parts.size()));
    parallel_for(threads, static_cast<std::int64_t>(wave.parts.size()), signal, [&](std::int64_t index, Worker& worker) {
      const SummaryPart& part = wave.parts[static_cast<std::size_t>(index)];
      const std::int64_t kv_len = keys_of(forward, part.head / forward.heads);
      double* const sums = memory + part.columns;
      if (wants_columns) std::fill_n(sums, 2 * kv_len, 0.0);
      const std::int64_t task_rows = Parts(single, kernels.attention, heads.rows(part.head)).task_rows;
      for (std::int64_t row = part.row_begin; row < part.row_end && !worker.should_stop(); row += task_rows) {
        SummaryTask task = heads.at(part.head, row, std::min(part.row_end, row + task_rows));
        if (wants_columns) {
          task.column_sums = sums;
          task.column_counts = sums + kv_len;
        }
        run_summary(kernel, single, task, interval, worker, scratch.of(worker), rows_done);
      }
    });
    if (!wants_columns) continue;
    const auto heads_in_wave = static_cast<std::int64_t>(wave.first_part.size()) - 1;
    parallel_for(threads, heads_in_wave, signal, [&](std::int64_t index, Worker&) {
      const std::int64_t head = wave.first_head + index;
      const std::int64_t kv_len = keys_of(forward, head / forward.heads);
      const std::int64_t first = wave.first_part[static_cast<std::size_t>(index)];
      const std::int64_t end = wave.first_part[static_cast<std::size_t>(index) + 1];
      std::vector<double> none;
      if (first == end) none.resize(static_cast<std::size_t>(2 * kv_len));
      double* const sums = first == end ? none.data() : memory + wave.parts[static_cast<std::size_t>(first)].columns;
      for (std::int64_t i = first + 1; i < end; ++i) {
        const double* const more = memory + wave.parts[static_cast<std::size_t>(i)].columns;
        for (std::int64_t j = 0; j < 2 * kv_len; ++j) sums[j] += more[j];
      }
      heads.write_columns(head, sums, sums + kv_len);
    });
  }
}

void map_attention(const SummaryProblem& asked, int threads, const StopSignal& signal, RowsDone& rows_done) {
  SummaryProblem problem = asked;
  const AttentionProblem& forward = problem.forward;
  AttentionMap& map = problem.map;
  if (forward.batch.count == 0 || forward.heads == 0 || map.height == 0 || map.width == 0) return;
  check_dims(forward);
  const Kernels& kernels = kernels_for(active_target(), forward.scalar);
  map.task_height = task_height(map, kernels.attention.task_rows(SummaryHeads(problem).single().forward));
  const SummaryHeads heads(problem);
  const SummaryProblem& single = heads.single();
  threads = threads_for(work_of(forward), threads);
  const std::int64_t most_rows = ceil_div(map.task_height * (map.row_end - map.row_begin), map.height);
  const std::int64_t tasks = ceil_div(map.height, map.task_height);
  const std::int64_t interval = interval_for(problem, kernels, most_rows);
  const Scratch scratch(threads, kernels.summary.workspace_bytes(single, most_rows));
  parallel_for(threads, heads.count() * tasks, signal, [&](std::int64_t index, Worker& worker) {
    if (worker.should_stop()) return;
    const SummaryTask task = heads.rows_of_map(index / tasks, (tasks - 1 - index % tasks) * map.task_height);
    run_summary(kernels.summary, single, task, interval, worker, scratch.of(worker), rows_done);
  });
}

}  // namespace regard
