#include "counting.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "split.hpp"
#include "targets.hpp"
#include "threads/scratch.hpp"

namespace regard {
namespace {

constexpr double kElement = 4;  // bytes

const Target* counted = nullptr;  // whose calls are counted
CountedTask at_hand{};
std::vector<CountedLoop> loops;
KeyInterval piece{};  // keys of the current gradients

const Kernels& real() { return counted->float32; }

void add(double multiplications, double elements) {
  at_hand.multiplications += multiplications;
  at_hand.bytes += elements * kElement;
}

double columns_of(const AttentionProblem& problem) {
  return static_cast<double>(problem.head_dim + problem.value_dim);
}

// The number of scores that the forward kernel computes for some rows and keys of a task, tile by
// tile. Counting reads no column of an array.
double scores_of(AttentionProblem problem, AttentionTask task, KeyInterval rows, KeyInterval keys) {
  problem.head_dim = problem.value_dim = 1;
  task.row_begin = rows.begin;
  task.row_end = rows.end;
  task.key_begin = std::max(task.key_begin, keys.begin);
  task.kv_len = std::min(task.kv_len, keys.end);
  const AttentionKernel& kernel = real().attention.forward;
  const Scratch workspace(1, kernel.workspace_bytes(problem, rows.end - rows.begin));
  TileCounts counts{};
  const SeenKeys seen = kernel.begin_count(problem, task, counts, workspace.at(0));
  for (KeyInterval part : {seen.keep_first, seen.window})
    while (part.begin < part.end) part.begin = kernel.count(problem, task, part, counts, workspace.at(0));
  return static_cast<double>(counts.scores);
}

void advance_forward(const AttentionProblem& problem, const AttentionTask& task, std::int64_t begin,
                     std::int64_t end, void*) {
  add(scores_of(problem, task, {task.row_begin, task.row_end}, {begin, end}) * columns_of(problem),
      static_cast<double>(end - begin) * columns_of(problem));
}

void advance_decode(const AttentionProblem& problem, const AttentionTask& task, std::int64_t begin,
                    std::int64_t end, void*) {
  const double keys = static_cast<double>(end - begin);
  add(static_cast<double>(task.row_end - task.row_begin) * keys * columns_of(problem), keys * columns_of(problem));
}

void finish_rows(const AttentionProblem& problem, const AttentionTask& task, void*) {
  add(0, static_cast<double>(task.row_end - task.row_begin) * columns_of(problem));
}

void begin_piece(const BackwardProblem& problem, const BackwardTask&, KeyInterval keys, void*) {
  piece = keys;
  add(0, 2 * static_cast<double>(keys.end - keys.begin) * columns_of(problem.forward));
}

void advance_backward(const BackwardProblem& problem, const BackwardTask& task, std::int64_t begin, std::int64_t end,
                      void*) {
  const AttentionProblem& forward = problem.forward;
  const double scores = scores_of(forward, task.forward, {begin, end}, piece);
  const double products = 3 * static_cast<double>(forward.head_dim) + 2 * static_cast<double>(forward.value_dim);
  add(scores * products, 2 * static_cast<double>(end - begin) * columns_of(forward));
}

void sum_partials(const BackwardProblem& problem, const BackwardTask& task, std::int64_t, void*) {
  const std::int64_t keys = task.forward.kv_len;
  const std::int64_t partials = ceil_div(keys, real().backward.chunk_keys(keys));
  add(0, static_cast<double>((task.forward.row_end - task.forward.row_begin) * (partials + 1)) *
             static_cast<double>(problem.forward.head_dim));
}

void multiply(const MatmulTask& task) {
  const double rows = static_cast<double>(task.row_end - task.row_begin);
  const double columns = static_cast<double>(task.column_end - task.column_begin);
  const double depth = static_cast<double>(task.depth_end - task.depth_begin);
  add(rows * columns * depth, rows * depth + depth * columns + rows * columns);
}

void pack(const MatmulTask& task) {
  const std::int64_t lines = task.row_end - task.row_begin + task.column_end - task.column_begin;
  add(0, 2 * static_cast<double>(lines * (task.depth_end - task.depth_begin)));
}

// The tables of a target, with kernels that count.
struct Tables {
#define REGARD_FAMILY(name, Table, unit) Table name;
#include "../kernels/families.inc"
#undef REGARD_FAMILY
  Target target;

  explicit Tables(const Target& from)
      :
#define REGARD_FAMILY(name, Table, unit) name(from.float32.name),
#include "../kernels/families.inc"
#undef REGARD_FAMILY
        target{from.name, from.vector_bytes,
               {
#define REGARD_FAMILY(name, Table, unit) .name = name,
#include "../kernels/families.inc"
#undef REGARD_FAMILY
               },
               from.float64} {
    attention.forward.advance = advance_forward;
    attention.forward.finish = finish_rows;
    decode.kernel.advance = advance_decode;
    decode.kernel.finish = finish_rows;
    decode.merge = [](const void*, void*) {};
    backward.begin = begin_piece;
    backward.advance = advance_backward;
    backward.finish = [](const BackwardProblem&, const BackwardTask&, void*) {};
    backward.clear = [](const BackwardProblem&, const BackwardTask&, KeyInterval) {};
    backward.sum_partials = sum_partials;
    matmul.run = [](const MatmulProblem&, const MatmulTask& task, void*) { multiply(task); };
    matmul.run_wave = [](const MatmulProblem&, const MatmulTask& part, const MatmulWave& wave, void*) {
      MatmulTask task = part;
      task.depth_begin = wave.depth_begin;
      task.depth_end = wave.depth_end;
      multiply(task);
    };
    matmul.pack_rows = [](const MatmulProblem&, const MatmulTask& task, const MatmulWave&) { pack(task); };
    matmul.pack_panels = matmul.pack_rows;
  }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;
};

std::optional<Tables> tables;

const LoopObserver kObserver{
    [](int threads, std::int64_t tasks, Handout handout) {
      loops.push_back({threads, handout, {}});
      loops.back().tasks.reserve(static_cast<std::size_t>(tasks));
      at_hand = {};
    },
    [] { loops.back().tasks.push_back(std::exchange(at_hand, {})); },
};

}  // namespace

void begin_counting() {
  end_counting();
  counted = &active_target();
  exchange_target(&tables.emplace(*counted).target);
  observe_loops(&kObserver);
}

std::vector<CountedLoop> end_counting() {
  observe_loops(nullptr);
  if (counted) exchange_target(std::exchange(counted, nullptr));
  return std::exchange(loops, {});
}

}  // namespace regard
