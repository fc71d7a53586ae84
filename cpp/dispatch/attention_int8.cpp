#include "attention_int8.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>

#include "attention_run.hpp"
#include "cpu_features.hpp"
#include "no_memory.hpp"

namespace regard {
namespace {

// A wave takes so much for each thread, or one head's keys if they alone are more: enough heads that
// threads seldom wait for each other at a wave's end.
constexpr std::int64_t kBytesPerThread = std::int64_t{32} << 20;
// More keys than any memory holds: below it no size in bytes exceeds 64 bits.
constexpr std::int64_t kMostKeys = std::int64_t{1} << 50;

std::atomic<bool> instruction_is_forbidden{false};

}  // namespace

void forbid_int8_instruction(bool forbid) {
  instruction_is_forbidden.store(forbid, std::memory_order_relaxed);
}

const Int8Attention& int8_attention_of(const Kernels& kernels) {
  const bool has_instruction = kernels.int8_dot.instruction &&
                               cpu_has(kernels.int8_dot.instruction) &&
                               !instruction_is_forbidden.load(std::memory_order_relaxed);
  return has_instruction ? kernels.int8_dot : kernels.int8;
}

Int8Waves::Int8Waves(const AttentionProblem& problem, const Kernels& kernels,
                     const AttentionTasks& tasks, int threads) {
  if (problem.kv_len > kMostKeys) throw NoMemory(problem.kv_len, "keys in int8");
  const std::int64_t most_bytes = kBytesPerThread * threads;
  // Batch entries may share keys, and read as many of them.
  using Identity = std::tuple<const void*, const std::int32_t*, std::int64_t, std::int64_t>;
  std::map<Identity, std::size_t> keys_of_wave;
  std::int64_t used = 0;
  for (std::int64_t index = 0; index < tasks.count(); ++index) {
    const AttentionTask task = tasks.at(index);
    const Identity identity{task.key, task.pages, task.key_begin, task.kv_len};
    auto found = keys_of_wave.find(identity);
    if (found == keys_of_wave.end()) {
      const std::int64_t bytes = kernels.int8_quantiser.bytes(problem, task.kv_len);
      if (waves_.empty() || used + bytes > most_bytes) {
        waves_.push_back({index, index, keys_.size(), keys_.size()});
        keys_of_wave.clear();
        used = 0;
      }
      found = keys_of_wave.emplace(identity, keys_.size()).first;
      keys_.push_back({index, used});
      used += bytes;
      bytes_ = std::max(bytes_, used);
    }
    keys_of_task_.push_back(found->second);
    waves_.back().end_task = index + 1;
    waves_.back().end_keys = keys_.size();
  }
}

void attention_in_int8(const AttentionProblem& problem, const Kernels& kernels,
                       const AttentionTasks& tasks, int threads, std::int64_t interval,
                       const StopSignal& signal) {
  const Int8Quantiser& quantiser = kernels.int8_quantiser;
  const Int8Attention& attention = int8_attention_of(kernels);
  const AttentionRun run{attention.kernel, attention.weights, interval};
  const Int8Waves waves(problem, kernels, tasks, threads);
  const Scratch scratch(threads, attention.kernel.workspace_bytes(problem, tasks.most_rows()));
  const Scratch memory(1, waves.bytes());
  const auto at = [&](const Int8Waves::Keys& keys) {
    return static_cast<char*>(memory.at(0)) + keys.offset;
  };

  for (const Int8Waves::Wave& wave : waves.waves()) {
    parallel_for(threads, static_cast<std::int64_t>(wave.end_keys - wave.first_keys), signal,
                 [&](std::int64_t index, Worker& worker) {
                   const Int8Waves::Keys& keys =
                       waves.keys(wave.first_keys + static_cast<std::size_t>(index));
                   const AttentionTask task = tasks.at(keys.task);
                   const KeyInterval all{0, task.kv_len};
                   quantiser.begin(problem, task.kv_len, at(keys));
                   over_intervals(all, interval, worker, [&](std::int64_t begin, std::int64_t end) {
                     quantiser.add_to_mean(problem, task, begin, end, at(keys));
                   });
                   over_intervals(all, interval, worker, [&](std::int64_t begin, std::int64_t end) {
                     quantiser.quantise(problem, task, begin, end, at(keys));
                   });
                 });
    parallel_for(threads, wave.end_task - wave.first_task, signal,
                 [&](std::int64_t index, Worker& worker) {
                   AttentionTask task = tasks.at(wave.first_task + index);
                   task.int8_keys = reinterpret_cast<const Int8Keys*>(
                       at(waves.keys_of_task(wave.first_task + index)));
                   run_task(problem, task, run, worker, scratch.of(worker));
                 });
  }
}

}  // namespace regard
