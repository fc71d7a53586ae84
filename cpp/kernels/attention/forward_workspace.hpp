// The working memory of one thread for one task. Its size depends on head_dim and value_dim and on
// whether there is more than one chunk of keys, but not on the number of keys.
#pragma once

#include "../strips/online_softmax.hpp"
#include "../strips/scattered.hpp"

namespace regard {
namespace {

template <class T>
struct ForwardStrip : OnlineStrip<T> {
  // For int8 precision (int8/scores.hpp): the factor of each lane's query, and the query's score
  // with the mean that was subtracted from all keys. Null otherwise.
  T* query_scale;
  T* mean_score;
  // For q4_1 keys (plain_scores.hpp): the step of each query, and the sums of its groups,
  // [groups][kStripLanes]. Null otherwise.
  T* query_steps;
  T* query_sums;
  GatheredKeys gathered;
  T* products;     // of gathered keys: [key][kStripLanes]
  T* reciprocal;   // of the final sum
  int asked_rows;  // output rows prefetched so far
};

template <class T>
struct ForwardWorkspace {
  ForwardStrip<T>* strips;
  int strip_count;
  T* weights;  // [block keys][kStripLanes]: the block's weights for the current strip
  T* bias;     // [block keys][kStripLanes]: added to the block's scores
  RowCopies<T> keys;
  RowCopies<T> values;
  // For q4_1 keys and values: scales and minimums, [groups][scale, minimum][block keys], and the
  // weights times the scales of a group, in the layout of `weights`. Null otherwise.
  T* key_groups;
  T* value_groups;
  T* group_weights;
};

// A block of keys and values. Its memory is accessed only on demand, so that a block that no strip
// sees costs nothing.
template <class T>
struct ForwardBlock : KeySpan {
  TileRows<T> keys{};
  TileRows<T> values{};
  // Scales and minimums as copy_group_scales writes them; null if rows are not in groups.
  const T* key_groups = nullptr;
  const T* value_groups = nullptr;
  std::ptrdiff_t group_stride = 0;
  int values_are_finite = -1;   // -1 until computed
  const T* products = nullptr;  // of the gathered keys of one strip (gathered.hpp)
};

template <class T>
REGARD_INLINE bool all_values_are_finite(ForwardBlock<T>& block, std::int64_t value_dim) {
  if (block.values_are_finite < 0)
    block.values_are_finite =
        block.key_groups ||
        rows_are_finite(block.values.from, block.values.stride, block.count, value_dim);
  return block.values_are_finite != 0;
}

// Lays out the workspace in `memory`, which begins with the structure itself. Returns the size in
// bytes. If `memory` is null, only computes the size.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_forward(const AttentionProblem& problem,
                                             std::int64_t task_rows, void* memory) {
  constexpr std::int64_t lanes = Shape::kStripLanes;
  const std::int64_t padded_value_dim = round_up(problem.value_dim, Shape::kRows);
  Arena arena(memory);
  auto* const place = arena.take<ForwardWorkspace<T>>(1);
  ForwardWorkspace<T> work{};
  const bool has_groups = problem.key.element == Element::q4_1;
  const std::int64_t groups = has_groups ? problem.head_dim / kGroupOfFourBits : 0;
  work.strip_count =
      take_strips<Shape>(problem, task_rows, arena, work.strips, [&](ForwardStrip<T>& strip) {
        take_online<Shape>(problem, 0, padded_value_dim, arena, strip);
        if (problem.precision == Precision::int8) {
          strip.query_scale = arena.take<T>(lanes);
          strip.mean_score = arena.take<T>(lanes);
        }
        if (groups > 0) {
          strip.query_steps = arena.take<T>(lanes);
          strip.query_sums = arena.take<T>(groups * lanes);
        }
        strip.gathered = take_gathered<Shape>(problem, arena);
        if (gathers(problem)) strip.products = arena.take<T>(Shape::kBlockKeys * lanes);
        strip.reciprocal = arena.take<T>(lanes);
      });
  const std::int64_t block_keys = round_up(
      problem.kv_len < Shape::kBlockKeys ? problem.kv_len : Shape::kBlockKeys, Shape::kRows);
  const bool has_scales = has_row_scales(problem.key.element);
  const auto take_scales = [&] { return has_scales ? arena.take<T>(block_keys) : nullptr; };
  work.weights = arena.take<T>(block_keys * lanes);
  work.bias = arena.take<T>(block_keys * lanes);
  work.keys = {arena.take<T>(block_keys * problem.head_dim),
               arena.take<T>(Shape::kRows * problem.head_dim), take_scales()};
  work.values = {arena.take<T>(block_keys * padded_value_dim), nullptr, take_scales()};
  if (has_groups) {
    work.key_groups = arena.take<T>(2 * groups * block_keys);
    work.value_groups = arena.take<T>(2 * problem.value_dim / kGroupOfFourBits * block_keys);
    work.group_weights = arena.take<T>(block_keys * lanes);
  }
  if (place) *place = work;
  return arena.used();
}

}  // namespace
}  // namespace regard
