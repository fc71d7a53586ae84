#include "chunks.hpp"

#include "../split.hpp"
#include "../threads/scratch.hpp"

#include <algorithm>
#include <vector>

namespace regard {
namespace {

// From this many heads per thread on, heads are distributed whole: the other threads then wait only
// a short time for the last one.
constexpr std::int64_t kWholeHeadsPerThread = 4;
// Number of chunks for each thread that are computed before they are merged, if there are enough.
// Each needs a workspace until then.
constexpr std::int64_t kChunksPerThread = 4;

std::int64_t gathered_chunks(const AttentionProblem& problem, const Kernels& kernels, const AttentionTasks& tasks,
                             int threads) {
  const std::int64_t chunks = tasks.count() * ceil_div(problem.kv_len, kernels.attention.chunk_keys);
  return std::min(kChunksPerThread * threads, chunks);
}

struct Chunk {
  std::int64_t task;
  KeyInterval keys;
};

}  // namespace

bool shares_chunks(const AttentionProblem& problem, const Kernels& kernels,
                   const AttentionTasks& tasks, int threads) {
  return threads > 1 && tasks.count() % threads != 0 && tasks.count() < kWholeHeadsPerThread * threads &&
         most_keys_of_row(problem) > static_cast<double>(kernels.attention.chunk_keys);
}

std::int64_t chunk_workspaces(const AttentionProblem& problem, const Kernels& kernels, const AttentionTasks& tasks,
                              int threads) {
  return tasks.count() + gathered_chunks(problem, kernels, tasks, threads);
}

void attention_in_chunks(const AttentionPlan& plan, const StopSignal& signal) {
  const AttentionProblem& problem = *plan.problem;
  const Kernels& kernels = *plan.kernels;
  const AttentionKernel& kernel = *plan.kernel;
  const AttentionTasks& tasks = *plan.tasks;
  const std::int64_t bytes = plan.bytes_of_workspace, interval = plan.interval;
  const std::int64_t gathered = gathered_chunks(problem, kernels, tasks, plan.threads);
  const Scratch totals(tasks.count(), bytes);
  const Scratch parts(gathered, bytes);

  std::vector<Chunk> chunks;
  StopClock clock(signal);
  const auto gather = [&] {
    if (clock.wants_stop()) throw Stopped{};
    parallel_for(plan.threads, static_cast<std::int64_t>(chunks.size()), signal,
                 [&](std::int64_t index, Worker& worker) {
                   const Chunk& chunk = chunks[static_cast<std::size_t>(index)];
                   const AttentionTask task = tasks.at(chunk.task);
                   kernel.pass.begin(problem, task, parts.at(index));
                   for (std::int64_t key = chunk.keys.begin;
                        key < chunk.keys.end && !worker.should_stop(); key += interval)
                     kernel.pass.advance(problem, task, key, std::min(chunk.keys.end, key + interval),
                                    parts.at(index));
                 });
    for (std::size_t i = 0; i < chunks.size(); ++i)
      kernel.merge(parts.at(static_cast<std::int64_t>(i)), totals.at(chunks[i].task));
    chunks.clear();
  };

  for (std::int64_t index = 0; index < tasks.count(); ++index) {
    const SeenKeys seen = kernel.pass.begin(problem, tasks.at(index), totals.at(index));
    for (const KeyInterval& keys : {seen.keep_first, seen.window})
      for (std::int64_t begin = keys.begin; begin < keys.end;) {
        const std::int64_t end =
            std::min(keys.end, (begin / kernels.attention.chunk_keys + 1) * kernels.attention.chunk_keys);
        chunks.push_back({index, {begin, end}});
        begin = end;
        if (static_cast<std::int64_t>(chunks.size()) == gathered) gather();
      }
  }
  gather();
  for (std::int64_t index = 0; index < tasks.count(); ++index)
    kernel.pass.finish(problem, tasks.at(index), totals.at(index));
}

}  // namespace regard
