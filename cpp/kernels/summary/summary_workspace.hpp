// What one thread keeps while it works on one task: strips of queries with what is known of their
// weights so far, and the weights of the block at work.
#pragma once

#include <initializer_list>

#include "../../problem/summary.hpp"
#include "../strips/setup.hpp"
#include "../strips/tile_rows.hpp"

namespace regard {
namespace {

// Sums over a row's keys, [lanes] each and one after another.
template <class T>
struct RowSums {
  T* log_weight;  // sum of P log2 P
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

// An integer that fills a lane: of 32 bits where lanes hold float32, which is too few for the
// number of a key.
template <class T>
struct LaneNumber {
  using Type = std::int64_t;
};
template <>
struct LaneNumber<float> {
  using Type = std::int32_t;
};

// The largest weights of a strip's rows so far, [count][lanes] in falling order, and their keys
// (top_keys.hpp).
template <class T>
struct TopKeys {
  T* weights;
  typename LaneNumber<T>::Type* numbers;  // from `base` on; or -1 - n for the n-th of `keys`
  std::int64_t* keys;  // as of the last time that `base` moved; -1 where there are fewer
  std::int64_t base;
};

template <class T>
struct SummaryStrip : StripRows<T> {
  T* queries;  // [head_dim][lanes], times query_scale
  T* lse;      // [lanes], in log2 units
  T* is_row;   // [lanes]: 1, or 0 beyond the last row
  // Keys from here to before there are near enough to count as local, [lanes] each.
  std::int64_t* local_begin;
  std::int64_t* local_end;
  // [lanes]: which of the task's rows of the map a query belongs to; null without a map.
  std::int64_t* map_row;
  // Keys are summed tile by tile, then block by block, then chunk by chunk: three levels keep the
  // error small, however many keys there are.
  RowSums<T> block;
  RowSums<T> chunk;
  std::int64_t chunk_number;
  RowSums<T> sums;
  // Other numbers of a row, [lanes] each.
  T* largest;
  T* previous;
  T* induced;
  TopKeys<T> top;
};

template <class T>
struct SummaryWorkspace {
  SummaryStrip<T>* strips;
  int strip_count;
  T* weights;  // [block keys][lanes]
  T* bias;     // [block keys][lanes]
  RowCopies<T> keys;
  T* columns;      // [block keys][vector]: sums over the rows of all strips
  T* column_rows;  // [block keys][vector]: how many rows see a key
  double* pixels;  // [task_height][width of the map]
  T* pixel_lanes;  // [block keys][lanes]: the block's columns of the map, for each query of a strip
  // [block keys]: which of these columns a key belongs to, -1 outside the map.
  std::int64_t* pixel_of_key;
};

// Lays a SummaryWorkspace out in `memory`, itself first. Returns its size in bytes, which is all
// that happens where memory is null.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_summary(const SummaryProblem& problem, std::int64_t task_rows,
                                             void* memory) {
  const AttentionProblem& forward = problem.forward;
  Arena arena(memory);
  auto* const place = arena.take<SummaryWorkspace<T>>(1);
  SummaryWorkspace<T> work{};
  const auto take = [&](SummaryStrip<T>& strip, std::int64_t lanes) {
    strip.queries = arena.take<T>(forward.head_dim * lanes);
    strip.lse = arena.take<T>(lanes);
    strip.is_row = arena.take<T>(lanes);
    strip.local_begin = arena.take<std::int64_t>(lanes);
    strip.local_end = arena.take<std::int64_t>(lanes);
    if (problem.map.pixels.data) strip.map_row = arena.take<std::int64_t>(lanes);
    for (RowSums<T>* sums : {&strip.block, &strip.chunk, &strip.sums})
      *sums = take_sums<T>(lanes, arena);
    for (T** number : {&strip.largest, &strip.previous, &strip.induced})
      *number = arena.take<T>(lanes);
    if (problem.top_weights.data) {
      strip.top.weights = arena.take<T>(lanes * problem.top_count);
      strip.top.numbers = arena.take<typename LaneNumber<T>::Type>(lanes * problem.top_count);
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
