// What a task would compute, in tiles: `begin_count`, then `count` over the keys that it returns. Nothing but masks is
// read of any array.
//
// Where no mask is read, the blocks that all rows see, and those that none sees, are counted by their number, so that a
// strip costs as much as its edges. A mask is read block by block, until it is time to look at the stop signal.
#pragma once

#include "key_block.hpp"
#include "mask_tiles.hpp"
#include "seen_blocks.hpp"
#include "strip_setup.hpp"

namespace regard {
namespace {

template <class Shape>
REGARD_NOINLINE SeenKeys begin_count(const AttentionProblem& problem, const AttentionTask& task, TileCounts& counts,
                                     void* memory) {
  const SeenKeys seen = locate_strips<Shape>(problem, task, memory);
  const int strips = static_cast<const Workspace<typename Shape::Element>*>(memory)->strip_count;
  counts.all += strips * ((problem.kv_len + Shape::kRows - 1) / Shape::kRows);
  return seen;
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void count_block(const AttentionProblem& problem, const AttentionTask& task, const Strip<T>& strip,
                                 std::int64_t key, const Workspace<T>& work, TileCounts& counts) {
  constexpr int kRows = Shape::kRows;
  const int count = block_at<T>(task, key, Shape::kBlockKeys).count;
  TileKind kinds[Shape::kBlockKeys / kRows];
  classify_tiles<Shape>(problem, task, strip, key, count, work.bias, kinds);
  for (int t = 0; t * kRows < count; ++t) {
    if (kinds[t] == TileKind::hidden) continue;
    counts.visible += kinds[t] == TileKind::visible;
    counts.biased += kinds[t] != TileKind::visible;
    const int k = t * kRows, keys = count - k < kRows ? count - k : kRows;
    VectorRange seeing{0, strip.vectors};
    if (kinds[t] == TileKind::hiding) seeing = vectors_that_see(strip, key + k, key + k + keys);
    const int end = seeing.end * kLanes<T>;
    const int rows = (end < strip.rows ? end : strip.rows) - seeing.begin * kLanes<T>;
    counts.scores += rows * static_cast<std::int64_t>(keys);
  }
}

// Counts from keys.begin on, which begins a block. Returns where it stopped.
template <class Shape>
REGARD_NOINLINE std::int64_t count_tiles(const AttentionProblem& problem, const AttentionTask& task, KeyInterval keys,
                                         TileCounts& counts, void* memory) {
  using T = typename Shape::Element;
  const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
  const bool reads_masks = task.mask || task.bias;
  const std::int64_t end = end_of_count<Shape>(reads_masks, keys);
  for (int s = 0; s < work.strip_count; ++s) {
    const Strip<T>& strip = work.strips[s];
    for (std::int64_t key = next_block_seen<Shape>(strip.seen, keys.begin, end); key < end;
         key = next_block_seen<Shape>(strip.seen, key, end)) {
      const std::int64_t whole = reads_masks ? 0 : whole_blocks_seen<Shape>(strip.shared, key);
      if (whole == 0) {
        count_block<Shape>(problem, task, strip, key, work, counts);
        key += Shape::kBlockKeys;
        continue;
      }
      const std::int64_t together = whole * Shape::kBlockKeys;
      (strip.slopes ? counts.biased : counts.visible) += together / Shape::kRows;
      counts.scores += together * strip.rows;
      key += together;
    }
  }
  return end;
}

}  // namespace
}  // namespace regard
