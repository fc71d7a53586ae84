#include "chunks.hpp"
#include "../threads/scratch.hpp"
#include "int8.hpp"
#include "run_task.hpp"

namespace regard {
namespace {

void run_tasks(const AttentionPlan& plan, const StopSignal& signal) {
  const Scratch scratch(plan.threads, plan.bytes_of_workspace);
  parallel_for(plan.threads, plan.tasks->count(), signal, [&](std::int64_t index, Worker& worker) {
    const AttentionTask task = plan.tasks->at(index);
    run_task(plan.kernel_of(task.entry), *plan.problem, task, plan.interval, worker,
             scratch.of(worker));
  });
}

}  // namespace

void run_attention(const AttentionPlan& plan, const StopSignal& signal) {
  switch (plan.method) {
    case AttentionMethod::none:
      return;
    case AttentionMethod::forward:
    case AttentionMethod::decode:
    case AttentionMethod::bfloat16:
      return run_tasks(plan, signal);
    case AttentionMethod::decode_chunks:
      return decode_in_chunks(plan, signal);
    case AttentionMethod::int8:
      return attention_in_int8(plan, signal);
  }
}

}  // namespace regard
