#include "compute.hpp"

#include <algorithm>

#include "attention/plan.hpp"
#include "attention/run_task.hpp"
#include "batch_index.hpp"
#include "no_memory.hpp"
#include "split.hpp"
#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {
namespace {

// Where a key head of a batch entry is in the arrays of a call.
class HeadPlaces {
 public:
  HeadPlaces(const LinearProblem& problem, std::int64_t index)
      : entry_(index / problem.kv_heads),
        head_(index % problem.kv_heads),
        group_(problem.heads / problem.kv_heads),
        first_(problem.starts ? problem.starts[entry_] : 0),
        tokens_(problem.starts ? problem.starts[entry_ + 1] - first_ : problem.q_len),
        batch_(problem.batch, entry_) {}

  void* of_queries(const Operand& operand) const { return at(operand, head_ * group_, first_); }
  void* of_keys(const Operand& operand) const { return at(operand, head_, first_); }
  void* of_state(const Operand& operand) const { return at(operand, head_, 0); }

  LinearTask task(const LinearProblem& problem, std::int64_t column_begin, std::int64_t column_end) const {
    LinearTask task{};
    task.query = of_queries(problem.query);
    task.key = of_keys(problem.key);
    task.value = of_keys(problem.value);
    task.decay = of_keys(problem.decay);
    task.beta = of_keys(problem.beta);
    task.state = of_state(problem.state);
    task.output = of_queries(problem.output);
    task.new_state = of_state(problem.new_state);
    task.tokens = tokens_;
    task.column_begin = column_begin;
    task.column_end = column_end;
    return task;
  }

 private:
  void* at(const Operand& operand, std::int64_t head, std::int64_t row) const {
    return advance(batch_.in(operand), operand, head * operand.head_stride + row * operand.row_stride);
  }

  std::int64_t entry_;
  std::int64_t head_;
  std::int64_t group_;
  std::int64_t first_;
  std::int64_t tokens_;
  BatchIndex batch_;
};

LinearBackwardTask task_of(const LinearBackwardProblem& problem, std::int64_t index) {
  const HeadPlaces head(problem.forward, index);
  LinearBackwardTask task{};
  task.forward = head.task(problem.forward, 0, problem.forward.value_dim);
  task.grad_output = head.of_queries(problem.grad_output);
  task.grad_new_state = head.of_state(problem.grad_new_state);
  task.grad_query = head.of_queries(problem.grad_query);
  task.grad_key = head.of_keys(problem.grad_key);
  task.grad_value = head.of_keys(problem.grad_value);
  task.grad_decay = head.of_keys(problem.grad_decay);
  task.grad_beta = head.of_keys(problem.grad_beta);
  task.grad_state = head.of_state(problem.grad_state);
  return task;
}

// The number of columns of the values that a task computes: fewer than all if there are fewer heads
// than threads. All parts of a head compute its scores.
std::int64_t columns_of_task(const LinearProblem& problem, const Kernels& kernels, int threads) {
  const std::int64_t heads = problem.batch.count * problem.kv_heads, unit = kernels.linear.column_unit;
  const std::int64_t units = std::max<std::int64_t>(ceil_div(problem.value_dim, unit), 1);
  return unit * ceil_div(units, std::min(ceil_div(threads, heads), units));
}

// Throws NoMemory if the size of this many states might not fit in 64 bits.
void check_states(const LinearProblem& problem, std::int64_t states) {
  check_dims(problem.head_dim, problem.value_dim, problem.scalar);
  const double elements = static_cast<double>(problem.head_dim) * static_cast<double>(problem.value_dim) *
                          static_cast<double>(states);
  if (elements > 0x1p50) throw NoMemory(INT64_MAX, "the states of a head");
}

// Runs `count` tasks with `work` multiplications in all. task_at(index) returns a task.
template <class Problem, class Task, class TaskAt>
void run_tasks(const PassKernels<Problem, Task>& kernel, const Problem& problem, const LinearProblem& forward,
               std::int64_t columns, std::int64_t count, double work, int threads, const StopSignal& signal,
               TaskAt task_at) {
  threads = static_cast<int>(std::min<std::int64_t>(threads, count));
  const double tokens =
      static_cast<double>(count) * static_cast<double>(std::max<std::int64_t>(forward.q_len, 1));
  const std::int64_t interval = interval_of(kChunkTokens, std::max(1.0, work / tokens * kChunkTokens));
  const Scratch scratch(threads, kernel.workspace_bytes(problem, std::min(columns, forward.value_dim)));
  parallel_for(threads, count, signal, [&](std::int64_t index, Worker& worker) {
    run_pass(kernel, problem, task_at(index), interval, worker, scratch.of(worker));
  });
}

}  // namespace

double work_of(const LinearProblem& problem) {
  const double tokens = problem.starts
                            ? static_cast<double>(problem.starts[problem.batch.count])
                            : static_cast<double>(problem.batch.count) * static_cast<double>(problem.q_len);
  const double heads = static_cast<double>(problem.heads + 2 * problem.kv_heads);
  const double dims = static_cast<double>(problem.head_dim + kChunkTokens / 2) *
                      static_cast<double>(problem.value_dim + kChunkTokens / 2);
  return tokens * heads * dims;
}

void attend_linearly(const LinearProblem& problem, int threads, const StopSignal& signal) {
  if (problem.batch.count == 0 || problem.kv_heads == 0) return;
  check_states(problem, 1);
  const Kernels& kernels = kernels_for(active_target(), problem.scalar);
  const double work = work_of(problem);
  threads = threads_for(work, threads);
  const std::int64_t columns = columns_of_task(problem, kernels, threads);
  const std::int64_t parts = std::max<std::int64_t>(ceil_div(problem.value_dim, columns), 1);
  const std::int64_t count = problem.batch.count * problem.kv_heads * parts;
  run_tasks(kernels.linear.pass, problem, problem, columns, count, work, threads, signal,
            [&](std::int64_t index) {
              const std::int64_t begin = index % parts * columns;
              return HeadPlaces(problem, index / parts)
                  .task(problem, begin, std::min(problem.value_dim, begin + columns));
            });
}

void linear_gradients(const LinearBackwardProblem& problem, int threads, const StopSignal& signal) {
  const LinearProblem& forward = problem.forward;
  if (forward.batch.count == 0 || forward.kv_heads == 0) return;
  check_states(forward, std::max<std::int64_t>(ceil_div(forward.q_len, kChunkTokens), 1));
  const double work = kBackwardWork * work_of(forward);
  run_tasks(kernels_for(active_target(), forward.scalar).linear.backward, problem, forward, forward.value_dim,
            forward.batch.count * forward.kv_heads, work, threads_for(work, threads), signal,
            [&](std::int64_t index) { return task_of(problem, index); });
}

}  // namespace regard
