// Counts the tiles that a task would compute: first `begin_count`, then `count` over the keys that
// it returns. Of all arrays, only masks are read.
#pragma once

#include "../strips/seen_blocks.hpp"
#include "forward_workspace.hpp"

namespace regard {
namespace {

template <class Shape>
REGARD_NOINLINE SeenKeys begin_count(const AttentionProblem& problem, const AttentionTask& task,
                                     TileCounts& counts, void* memory) {
  using T = typename Shape::Element;
  lay_out_forward<Shape>(problem, task.row_end - task.row_begin, memory);
  const ForwardWorkspace<T>& work = *static_cast<const ForwardWorkspace<T>*>(memory);
  counts.all += work.strip_count * ((problem.kv_len + Shape::kRows - 1) / Shape::kRows);
  const SeenKeys seen =
      from_whole_blocks<Shape>(locate_strips(problem, task, work.strips, work.strip_count));
  counts.chunks += chunks_of<Shape>(seen);
  return seen;
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void count_block(const AttentionProblem& problem, const AttentionTask& task,
                                 const ForwardStrip<T>& strip, std::int64_t key,
                                 const ForwardWorkspace<T>& work, TileCounts& counts) {
  const KeySpan block = span_at<Shape>(key, task.kv_len);
  const SeenTiles<Shape> tiles = see_tiles<Shape>(problem, task, strip, block, work.bias);
  KeyRuns<Shape> runs;
  const bool is_gathered = count_gathered<Shape>(problem, strip, key, counts);
  over_parts<Shape>(problem, task, strip, block, tiles, NextMask<T>{strip, INT64_MAX}, runs,
                    [&](TileKind kind, const VectorRange& vectors, int begin, int end) {
                      (kind == TileKind::visible ? counts.visible : counts.biased) +=
                          (end - begin + Shape::kRows - 1) / Shape::kRows;
                      if (is_gathered) return;
                      const int last = vectors.end * kLanes<T>;
                      const int rows =
                          (last < strip.rows ? last : strip.rows) - vectors.begin * kLanes<T>;
                      const std::int64_t past = round_up(end, Shape::kRows);
                      counts.scores += rows * ((past < block.count ? past : block.count) - begin);
                    });
}

template <class Shape>
REGARD_NOINLINE std::int64_t count_tiles(const AttentionProblem& problem, const AttentionTask& task,
                                         KeyInterval keys, TileCounts& counts, void* memory) {
  using Strip = ForwardStrip<typename Shape::Element>;
  const auto& work = *static_cast<const ForwardWorkspace<typename Shape::Element>*>(memory);
  const bool reads_masks = task.mask || task.bias || task.distance_bias || problem.sparse_mask;
  return count_blocks<Shape>(
      problem, work.strips, work.strip_count, reads_masks, keys,
      [&](const Strip& strip, std::int64_t together) {
        (strip.slopes ? counts.biased : counts.visible) += together / Shape::kRows;
        counts.scores += together * strip.rows;
      },
      [&](const Strip& strip, std::int64_t key) {
        count_block<Shape>(problem, task, strip, key, work, counts);
      });
}

}  // namespace
}  // namespace regard
