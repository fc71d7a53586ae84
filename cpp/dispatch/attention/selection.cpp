#include "../compute.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "../split.hpp"
#include "../targets.hpp"
#include "../threads/scratch.hpp"
#include "plan.hpp"
#include "run_task.hpp"

namespace regard {
namespace {

// The keys of a few queries are divided among threads in parts of at least this many.
constexpr std::int64_t kLeastKeysOfPart = 4096;
constexpr std::int64_t kKeyPartsPerThread = 4;
// Keys whose index is computed before the best of them are chosen: 48 KB for 8 queries in float32.
constexpr std::int64_t kMostKeysAtOnce = 1536;

struct IndexedKey {
  double index;
  std::int64_t key;
};

// By index, and equal ones by key. An object, so that calls are inlined.
constexpr auto is_better = [](const IndexedKey& a, const IndexedKey& b) {
  return a.index > b.index || (a.index == b.index && a.key < b.key);
};

// The best keys of one query among those seen so far, which are passed in ascending order. The
// memory has room for kRoom times as many: the others are dropped when it is full, so that a key
// costs a constant time. A NaN, or -inf, is never among the best.
class BestKeys {
 public:
  static constexpr std::int64_t kRoom = 3;

  BestKeys() = default;
  BestKeys(IndexedKey* memory, std::int64_t count) : keys_(memory), count_(count) {}

  template <class T>
  void add(const T* indices, std::int64_t first_key, std::int64_t keys) {
    for (std::int64_t i = 0; i < keys;) {
      const std::int64_t end = std::min(keys, i + kRoom * count_ - size_);
      const auto least = static_cast<T>(least_);
      // Without branches, which the processor could not predict.
      for (; i < end; ++i) {
        keys_[size_] = {static_cast<double>(indices[i]), first_key + i};
        size_ += indices[i] > least ? 1 : 0;
      }
      if (size_ == kRoom * count_) drop_worst();
    }
  }

  void add(const BestKeys& others) {
    for (std::int64_t i = 0; i < others.size_; ++i) {
      if (!(others.keys_[i].index > least_)) continue;
      keys_[size_++] = others.keys_[i];
      if (size_ == kRoom * count_) drop_worst();
    }
  }

  // Leaves at most `count` keys, in ascending order.
  void sort() {
    drop_worst();
    std::sort(keys_, keys_ + size_, [](const IndexedKey& a, const IndexedKey& b) { return a.key < b.key; });
  }

  void write(std::int64_t* to, std::int64_t stride, std::int64_t columns) const {
    for (std::int64_t i = 0; i < columns; ++i) to[i * stride] = i < size_ ? keys_[i].key : -1;
  }

 private:
  void drop_worst() {
    if (size_ == 0 || size_ < count_) return;
    std::nth_element(keys_, keys_ + count_ - 1, keys_ + size_, is_better);
    size_ = count_;
    least_ = keys_[count_ - 1].index;  // a later key that is only equal is not better
  }

  IndexedKey* keys_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t size_ = 0;
  double least_ = -std::numeric_limits<double>::infinity();
};

// The tasks of a call: the kv heads of all batch entries, the queries of each, and the keys in
// parts if there are few of these.
struct SelectionTasks {
  std::int64_t task_queries;
  std::int64_t parts_of_head;
  std::int64_t count;
  std::int64_t key_parts = 1;
  std::int64_t part_keys;

  SelectionTasks(const SelectionProblem& problem, const Kernels& kernels, int threads) {
    const AttentionProblem& forward = problem.forward;
    const std::int64_t heads = forward.batch.count * forward.kv_heads;
    const std::int64_t wanted = ceil_div(kKeyPartsPerThread * threads, heads);  // of each head
    task_queries = std::min(kernels.selection.task_queries(problem), ceil_div(forward.q_len, wanted));
    parts_of_head = ceil_div(forward.q_len, task_queries);
    count = heads * parts_of_head;
    part_keys = std::max<std::int64_t>(forward.kv_len, 1);
    if (threads == 1 || count >= kKeyPartsPerThread * threads) return;
    const std::int64_t unit = kernels.attention.chunk_keys;
    const std::int64_t parts = std::min(ceil_div(kKeyPartsPerThread * threads, count),
                                        std::max<std::int64_t>(1, forward.kv_len / kLeastKeysOfPart));
    part_keys = ceil_div(ceil_div(part_keys, parts), unit) * unit;
    key_parts = ceil_div(std::max<std::int64_t>(forward.kv_len, 1), part_keys);
  }

  // The last queries of a head come first: they see the most keys if the call is causal.
  SelectionTask at(const SelectionProblem& problem, std::int64_t index) const {
    const AttentionProblem& forward = problem.forward;
    const std::int64_t head = index / parts_of_head, part = parts_of_head - 1 - index % parts_of_head;
    const std::int64_t entry = head / forward.kv_heads, kv_head = head % forward.kv_heads;
    const std::int64_t group = forward.heads / forward.kv_heads;
    const std::int64_t first = part * task_queries, end = std::min(forward.q_len, first + task_queries);
    SelectionTask task{};
    task.forward = task_of(forward, entry, kv_head, first * group, end * group);
    task.head_weights = HeadPlace(forward, entry, kv_head).of_queries(problem.head_weights);
    return task;
  }
};

template <class T>
void select_keys_in(const SelectionProblem& problem, const Kernels& kernels, int threads, const StopSignal& signal) {
  const AttentionProblem& forward = problem.forward;
  const SelectionKernels& kernel = kernels.selection;
  const SelectionTasks tasks(problem, kernels, threads);
  const std::int64_t group = forward.heads / forward.kv_heads, queries = tasks.task_queries;
  const std::int64_t parts = tasks.count * tasks.key_parts;
  threads = static_cast<int>(std::min<std::int64_t>(threads, parts));

  const double work_of_block = static_cast<double>(queries * group) * static_cast<double>(forward.head_dim) *
                               static_cast<double>(kernels.attention.block_keys);
  const std::int64_t interval = std::min(interval_of(kernels.attention.block_keys, work_of_block),
                                         kMostKeysAtOnce / kernels.attention.block_keys * kernels.attention.block_keys);
  const std::int64_t most = std::min(problem.count, forward.kv_len);
  // Parts of a head's keys keep their best keys until all parts are complete.
  const std::int64_t lists = (tasks.key_parts > 1 ? parts : threads) * queries;
  const Scratch workspace(threads, kernel.workspace_bytes(problem, queries));
  const Scratch indices(threads, queries * interval * static_cast<std::int64_t>(sizeof(T)));
  const Scratch memory(lists, BestKeys::kRoom * most * static_cast<std::int64_t>(sizeof(IndexedKey)));
  std::vector<BestKeys> best(static_cast<std::size_t>(lists));

  const auto write = [&](const SelectionTask& task, const BestKeys* lists_of_task) {
    const AttentionTask& rows = task.forward;
    const HeadPlace place(forward, rows.entry, rows.first_head / group);
    auto* const to = static_cast<std::int64_t*>(place.of_keys(problem.selected));
    for (std::int64_t query = rows.row_begin / group; query < rows.row_end / group; ++query)
      lists_of_task[query - rows.row_begin / group].write(to + query * problem.selected.row_stride,
                                                          problem.selected.column_stride, problem.count);
  };

  parallel_for(threads, parts, signal, [&](std::int64_t index, Worker& worker) {
    const SelectionTask task = tasks.at(problem, index / tasks.key_parts);
    const std::int64_t task_queries = (task.forward.row_end - task.forward.row_begin) / group;
    const std::int64_t part = index % tasks.key_parts * tasks.part_keys;
    const std::int64_t first_list = (tasks.key_parts > 1 ? index : worker.thread()) * queries;
    BestKeys* const lists_of_task = best.data() + first_list;
    for (std::int64_t query = 0; query < task_queries; ++query)
      lists_of_task[query] = BestKeys(static_cast<IndexedKey*>(memory.at(first_list + query)), most);
    const SeenKeys seen = kernel.begin(problem, task, workspace.of(worker));
    const KeyInterval keys{std::max(seen.window.begin, part), std::min(seen.window.end, part + tasks.part_keys)};
    T* const numbers = static_cast<T*>(indices.of(worker));
    over_intervals(keys, interval, worker, [&](std::int64_t begin, std::int64_t end) {
      kernel.index(problem, task, begin, end, numbers, interval, workspace.of(worker));
      for (std::int64_t query = 0; query < task_queries; ++query)
        lists_of_task[query].add(numbers + query * interval, begin, end - begin);
    });
    for (std::int64_t query = 0; query < task_queries; ++query) lists_of_task[query].sort();
    if (tasks.key_parts == 1) write(task, lists_of_task);
  });
  if (tasks.key_parts == 1) return;
  for (std::int64_t index = 0; index < tasks.count; ++index) {
    const SelectionTask task = tasks.at(problem, index);
    BestKeys* const first = best.data() + index * tasks.key_parts * queries;
    for (std::int64_t query = 0; query < (task.forward.row_end - task.forward.row_begin) / group; ++query) {
      for (std::int64_t part = 1; part < tasks.key_parts; ++part) first[query].add(first[part * queries + query]);
      first[query].sort();
    }
    write(task, first);
  }
}

}  // namespace

void select_keys(const SelectionProblem& problem, int threads, const StopSignal& signal) {
  const AttentionProblem& forward = problem.forward;
  if (forward.batch.count == 0 || forward.kv_heads == 0 || forward.q_len == 0 || problem.count == 0) return;
  check_dims(forward);
  const Kernels& kernels = kernels_for(active_target(), forward.scalar);
  threads = threads_for(work_of(forward), threads);
  if (forward.scalar == Scalar::float64)
    select_keys_in<double>(problem, kernels, threads, signal);
  else
    select_keys_in<float>(problem, kernels, threads, signal);
}

}  // namespace regard
