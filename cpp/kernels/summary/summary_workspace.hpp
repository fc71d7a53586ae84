// The working memory of one thread for one task.
#pragma once

#include <initializer_list>

#include "../../problem/summary.hpp"
#include "../strips/setup.hpp"
#include "../strips/tile_rows.hpp"

namespace regard {
namespace {

// Sums over a row's keys, [lanes] each, stored one after another.
template <class T>
struct RowSums {
  T* log_weight;  // sum of P log P
  T* total;
  T* square;
  T* distance;
  T* first;
  T* local;
};
constexpr int kRowSums = 6;

template <class T>
REGARD_INLINE RowSums<T> take_sums(std::int64_t lanes, Arena& arena) {
  T* const sums = arena.take<T>(kRowSums * lanes);
  return {
      sums, sums + lanes, sums + 2 * lanes, sums + 3 * lanes, sums + 4 * lanes, sums + 5 * lanes};
}

// The largest weights of a strip's rows so far, [count][kStripLanes] in descending order, and their
// keys (top_keys.hpp).
template <class T>
struct TopKeys {
  T* weights;
  LaneWord<sizeof(T)>* numbers;  // relative to `base`, or -1 - n for the n-th of `keys`
  std::int64_t* keys;            // as of the last move of `base`; -1 if there are fewer
  std::int64_t base;
};

template <class T>
struct SummaryStrip : StripRows<T> {
  T* queries;     // [head_dim][kStripLanes]
  RowLse<T> lse;  // [lanes]
  T* is_row;      // [lanes]: 1, or 0 beyond the last row
  // [lanes]: the row of the map, among the task's rows, to which a query belongs; null without a
  // map.
  std::int64_t* map_row;
  // Keys are summed tile by tile, then block by block, then chunk by chunk. Three levels keep the
  // error small for any number of keys.
  RowSums<T> block;
  RowSums<T> chunk;
  std::int64_t chunk_number;
  RowSums<T> sums;
  // Other statistics of a row, [lanes] each.
  T* largest;
  T* previous;
  T* induced;
  TopKeys<T> top;
};

template <class T>
struct SummaryWorkspace {
  SummaryStrip<T>* strips;
  int strip_count;
  T* weights;  // [block keys][kStripLanes]
  T* bias;     // [block keys][kStripLanes]
  RowCopies<T> keys;
  T* columns;      // [block keys][vector]: sums over the rows of all strips
  T* column_rows;  // [block keys][vector]: number of rows that see a key
  double* pixels;  // [task_height][width of the map]
  T* pixel_lanes;  // [block keys][lanes]: the block's columns of the map, for each query of a strip
  // [block keys]: the index of a key's column in pixel_lanes, or -1 outside the map.
  std::int64_t* pixel_of_key;
};

// Lays out the workspace, as lay_out_forward does (../attention/forward_workspace.hpp).
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_summary(const SummaryProblem& problem, std::int64_t task_rows,
                                             void* memory) {
  const AttentionProblem& forward = problem.forward;
  Arena arena(memory);
  auto* const place = arena.take<SummaryWorkspace<T>>(1);
  SummaryWorkspace<T> work{};
  constexpr std::int64_t lanes = Shape::kStripLanes;
  const auto take = [&](SummaryStrip<T>& strip) {
    strip.queries = arena.take<T>(forward.head_dim * lanes);
    strip.lse = {arena.take<T>(lanes), arena.take<T>(lanes)};
    strip.is_row = arena.take<T>(lanes);
    if (problem.map.pixels.data) strip.map_row = arena.take<std::int64_t>(lanes);
    for (RowSums<T>* sums : {&strip.block, &strip.chunk, &strip.sums})
      *sums = take_sums<T>(lanes, arena);
    for (T** number : {&strip.largest, &strip.previous, &strip.induced})
      *number = arena.take<T>(lanes);
    if (problem.top_weights.data) {
      strip.top.weights = arena.take<T>(lanes * problem.top_count);
      strip.top.numbers = arena.take<LaneWord<sizeof(T)>>(lanes * problem.top_count);
      strip.top.keys = arena.take<std::int64_t>(lanes * problem.top_count);
    }
  };
  work.strip_count = take_strips<Shape>(forward, task_rows, arena, work.strips, take);
  constexpr std::int64_t kBlock = Shape::kBlockKeys * Shape::kStripLanes;
  work.weights = arena.take<T>(kBlock);
  work.bias = arena.take<T>(kBlock);
  work.keys = {arena.take<T>(Shape::kBlockKeys * forward.head_dim),
               arena.take<T>(Shape::kRows * forward.head_dim), nullptr};
  work.columns = arena.take<T>(Shape::kBlockKeys * kLanes<T>);
  work.column_rows = arena.take<T>(Shape::kBlockKeys * kLanes<T>);
  if (problem.map.pixels.data) {
    work.pixels = arena.take<double>(problem.map.task_height * problem.map.width);
    work.pixel_lanes = arena.take<T>(kBlock);
    work.pixel_of_key = arena.take<std::int64_t>(Shape::kBlockKeys);
  }
  if (place) *place = work;
  return arena.used();
}

}  // namespace
}  // namespace regard
