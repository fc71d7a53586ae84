// Sets up a task's strips: lays them out in the workspace, and finds the positions of their queries
// among the keys.
#pragma once

#include "arena.hpp"
#include "score_rule.hpp"
#include "sparse_mask.hpp"

namespace regard {
namespace {

// Takes memory for the arrays in StripRows.
template <class T>
REGARD_INLINE void take_rows(const AttentionProblem& problem, std::int64_t lanes, Arena& arena,
                             StripRows<T>& strip) {
  strip.positions = arena.take<std::int64_t>(lanes);
  strip.first_key = arena.take<std::int64_t>(lanes);
  strip.end_key = arena.take<std::int64_t>(lanes);
  strip.scales = arena.take<T>(lanes);
  strip.slopes = problem.alibi_slopes.data ? arena.take<T>(lanes) : nullptr;
  strip.mean_scores = problem.key_means ? arena.take<T>(lanes) : nullptr;
  strip.softcaps = has_softcap(problem) ? arena.take<T>(lanes) : nullptr;
  strip.function_positions = problem.score_function ? arena.take<std::int64_t>(lanes) : nullptr;
  if (!problem.sparse_mask) return;
  strip.mask_runs = arena.take<MaskRun>(lanes);
  strip.mask_queries = arena.take<std::int64_t>(lanes);
}

// Lays out the strips of a task with `task_rows` rows, counted from the task's first row, and
// returns the number of strips. For each strip, take(strip) lays out the family's own arrays.
template <class Shape, class Strip, class Take>
REGARD_INLINE int take_strips(const AttentionProblem& problem, std::int64_t task_rows, Arena& arena,
                              Strip*& strips, Take take) {
  const std::int64_t unit = row_unit<Shape>(problem);
  strips = arena.take<Strip>((task_rows + unit - 1) / unit * strips_of_unit<Shape>(problem));
  int count = 0;
  for_strips<Shape>(problem, task_rows, [&](std::int64_t first_row, int rows, int vectors) {
    Strip strip{};
    strip.first_row = first_row;
    strip.rows = rows;
    strip.vectors = vectors;
    take_rows(problem, Shape::kStripLanes, arena, strip);
    take(strip);
    if (!arena.only_counts()) strips[count] = strip;
    ++count;
  });
  return count;
}

// Fills in the positions of a strip's rows, and their slopes. Does not read the arrays.
template <class T>
REGARD_NOINLINE void locate_strip(const AttentionProblem& problem, const AttentionTask& task,
                                  StripRows<T>& strip) {
  locate_rows(problem, task, strip);
  if (strip.mask_runs) find_mask_runs(problem, task, strip);
  const int lanes = strip.vectors * kLanes<T>;
  const auto for_heads = [&](T* numbers, auto number_of) {
    const std::int64_t group = problem.heads / problem.kv_heads;
    for (int lane = 0; numbers && lane < lanes; ++lane)
      numbers[lane] = number_of((strip.first_row + lane) % group);
  };
  for_heads(strip.slopes, [&](std::int64_t head) { return slope_of<T>(problem, task, head); });
  for_heads(strip.scales,
            [&](std::int64_t head) { return nearest_finite<T>(scale_of(problem, task, head)); });
  for_heads(strip.softcaps,
            [&](std::int64_t head) { return static_cast<T>(softcap_of<T>(problem, task, head)); });
  for (int lane = 0; strip.function_positions && lane < lanes; ++lane)
    strip.function_positions[lane] = strip.positions[lane] + problem.dropout_origin.position;
}

// Likewise for all strips of a task, which must have been laid out. Returns the keys that some row
// sees by position.
template <class Strip>
REGARD_INLINE SeenKeys locate_strips(const AttentionProblem& problem, const AttentionTask& task,
                                     Strip* strips, int count) {
  SeenKeys seen{{task.kv_len, 0}, {task.kv_len, 0}};
  for (Strip* strip = strips; strip < strips + count; ++strip) {
    strip->first_row += task.row_begin;
    locate_strip(problem, task, *strip);
    extend(seen.keep_first, strip->seen.keep_first);
    extend(seen.window, strip->seen.window);
  }
  return seen_keys(seen.keep_first, seen.window);
}

}  // namespace
}  // namespace regard
