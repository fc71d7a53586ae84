#include "int8.hpp"

#include <atomic>

#include "../cpu_features.hpp"
#include "../threads/scratch.hpp"
#include "run_task.hpp"

namespace regard {
namespace {

std::atomic<bool> is_forbidden{false};

}  // namespace

void forbid_int8(bool forbid) { is_forbidden.store(forbid, std::memory_order_relaxed); }

bool is_faster_in_int8(const Kernels& kernels) {
  const char* instruction = kernels.int8.instruction;
  return instruction && cpu_has(instruction) && !is_forbidden.load(std::memory_order_relaxed);
}

void attention_in_int8(const AttentionPlan& plan, const StopSignal& signal) {
  const AttentionProblem& problem = *plan.problem;
  const Int8Quantizer& quantizer = plan.kernels->int8.quantizer;
  const AttentionTasks& tasks = *plan.tasks;
  const Int8Waves& waves = *plan.waves;
  const std::int64_t interval = plan.interval;
  const int threads = plan.threads;
  const Scratch scratch(threads, plan.bytes_of_workspace);
  const Scratch memory(1, waves.bytes);
  const auto at = [&](const Int8Waves::Keys& keys) {
    return static_cast<char*>(memory.at(0)) + keys.offset;
  };

  for (const Int8Waves::Wave& wave : waves.waves) {
    parallel_for(threads, static_cast<std::int64_t>(wave.end_keys - wave.first_keys), signal,
                 [&](std::int64_t index, Worker& worker) {
                   const Int8Waves::Keys& keys =
                       waves.keys[wave.first_keys + static_cast<std::size_t>(index)];
                   const AttentionTask task = tasks.at(keys.task);
                   const KeyInterval all{0, task.kv_len};
                   quantizer.begin(problem, task.kv_len, at(keys));
                   over_intervals(all, interval, worker, [&](std::int64_t begin, std::int64_t end) {
                     quantizer.add_to_mean(problem, task, begin, end, at(keys));
                   });
                   over_intervals(all, interval, worker, [&](std::int64_t begin, std::int64_t end) {
                     quantizer.quantize(problem, task, begin, end, at(keys));
                   });
                 });
    parallel_for(threads, wave.end_task - wave.first_task, signal,
                 [&](std::int64_t index, Worker& worker) {
                   AttentionTask task = tasks.at(wave.first_task + index);
                   const auto number = static_cast<std::size_t>(wave.first_task + index);
                   task.int8_keys = reinterpret_cast<const Int8Keys*>(
                       at(waves.keys[waves.keys_of_task[number]]));
                   run_task(*plan.kernel, problem, task, interval, worker, scratch.of(worker));
                 });
  }
}

}  // namespace regard
