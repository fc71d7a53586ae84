#include "compute.hpp"

#include <algorithm>

#include "attention/plan.hpp"
#include "attention/run_task.hpp"
#include "batch_index.hpp"
#include "split.hpp"
#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {
namespace {

// The tasks of a call: the key heads of all batch entries, and parts of the values' columns if
// there are few of these. All parts compute the scores of their head.
class LinearTasks {
 public:
  LinearTasks(const LinearProblem& problem, const Kernels& kernels, int threads) : problem_(problem) {
    const std::int64_t heads = problem.batch.count * problem.kv_heads;
    const std::int64_t unit = kernels.linear.panel_columns, panels = ceil_div(problem.value_dim, unit);
    const std::int64_t wanted = threads == 1 || heads >= 4 * threads ? 1 : ceil_div(2 * threads, heads);
    columns_ = unit * ceil_div(panels, std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(panels, 1)));
    parts_ = std::max<std::int64_t>(ceil_div(problem.value_dim, std::max<std::int64_t>(columns_, 1)), 1);
    count_ = heads * parts_;
  }

  std::int64_t count() const { return count_; }
  std::int64_t most_columns() const { return std::min(columns_, problem_.value_dim); }

  LinearTask at(std::int64_t index) const {
    const std::int64_t head = index / parts_, part = index % parts_;
    const std::int64_t entry = head / problem_.kv_heads, kv_head = head % problem_.kv_heads;
    const std::int64_t group = problem_.heads / problem_.kv_heads;
    const std::int64_t first = problem_.starts ? problem_.starts[entry] : 0;
    const BatchIndex batch(problem_.batch, entry);
    const auto place = [&](const Operand& operand, std::int64_t of_head, std::int64_t row) {
      return advance(batch.in(operand), operand, of_head * operand.head_stride + row * operand.row_stride);
    };
    LinearTask task{};
    task.query = place(problem_.query, kv_head * group, first);
    task.key = place(problem_.key, kv_head, first);
    task.value = place(problem_.value, kv_head, first);
    task.decay = place(problem_.decay, kv_head, first);
    task.beta = place(problem_.beta, kv_head, first);
    task.state = place(problem_.state, kv_head, 0);
    task.output = place(problem_.output, kv_head * group, first);
    task.new_state = place(problem_.new_state, kv_head, 0);
    task.tokens = problem_.starts ? problem_.starts[entry + 1] - first : problem_.q_len;
    task.column_begin = part * columns_;
    task.column_end = std::min(problem_.value_dim, task.column_begin + columns_);
    return task;
  }

 private:
  const LinearProblem& problem_;
  std::int64_t columns_;
  std::int64_t parts_;
  std::int64_t count_;
};

}  // namespace

double work_of(const LinearProblem& problem) {
  const double tokens = problem.starts ? static_cast<double>(problem.starts[problem.batch.count])
                                       : static_cast<double>(problem.batch.count) * static_cast<double>(problem.q_len);
  const double heads = static_cast<double>(problem.heads + 2 * problem.kv_heads);
  const double dims = static_cast<double>(problem.head_dim + kChunkTokens / 2) *
                      static_cast<double>(problem.value_dim + kChunkTokens / 2);
  return tokens * heads * dims;
}

void attend_linearly(const LinearProblem& problem, int threads, const StopSignal& signal) {
  if (problem.batch.count == 0 || problem.kv_heads == 0) return;
  check_dims(problem.head_dim, problem.value_dim, problem.scalar);
  const Kernels& kernels = kernels_for(active_target(), problem.scalar);
  const PassKernels<LinearProblem, LinearTask>& kernel = kernels.linear.pass;
  const double work = work_of(problem);
  threads = threads_for(work, threads);
  const LinearTasks tasks(problem, kernels, threads);
  threads = static_cast<int>(std::min<std::int64_t>(threads, tasks.count()));
  const double tokens = static_cast<double>(tasks.count()) * static_cast<double>(std::max<std::int64_t>(problem.q_len, 1));
  const std::int64_t interval = interval_of(kChunkTokens, std::max(1.0, work / tokens * kChunkTokens));
  const Scratch scratch(threads, kernel.workspace_bytes(problem, tasks.most_columns()));
  parallel_for(threads, tasks.count(), signal, [&](std::int64_t index, Worker& worker) {
    run_pass(kernel, problem, tasks.at(index), interval, worker, scratch.of(worker));
  });
}

}  // namespace regard
