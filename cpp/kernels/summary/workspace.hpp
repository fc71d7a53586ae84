// What one thread keeps while it works on one task: strips of queries with what is known of their weights so far, and
// the weights of the block at work.
#pragma once

#include <initializer_list>

#include "../../problem/summary.hpp"
#include "../attention/visibility.hpp"

namespace regard {
namespace {

// What is added up or kept for each row, [lanes] each.
template <class T>
struct RowSums {
  T* log_weight;  // sum of P log2 P
  T* largest;
  T* total;
  T* square;
  T* distance;
  T* sink;
  T* local;
  T* previous;
  T* induced;
};

// An integer that fills a lane: of 32 bits where lanes hold float32, which is too few for the number of a key.
template <class T>
struct LaneNumber {
  using Type = std::int64_t;
};
template <>
struct LaneNumber<float> {
  using Type = std::int32_t;
};

// The largest weights of a strip's rows so far, [count][lanes] in falling order, and their keys (top_keys.hpp).
template <class T>
struct TopKeys {
  T* weights;
  typename LaneNumber<T>::Type* numbers;  // from `base` on; or -1 - n for the n-th of `keys`
  std::int64_t* keys;                     // as of the last time that `base` moved; -1 where there are fewer
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
  std::int64_t* map_row;  // [lanes]: which of the task's rows of the map a query belongs to; null without a map
  RowSums<T> sums;
  TopKeys<T> top;
};

template <class T>
struct SummaryWorkspace {
  SummaryStrip<T>* strips;
  int strip_count;
  T softcap;       // the largest score, in log2 units; 0 where scores are not capped
  T* rows;         // [lanes][head_dim]: a strip's queries, on their way into lanes
  T* weights;      // [block keys][lanes]
  T* bias;         // [block keys][lanes]
  T* keys;         // [block keys][head_dim]: what cannot be read in place
  T* columns;      // [block keys][vector]: sums over the rows of all strips
  T* column_rows;  // [block keys][vector]: how many rows see a key
  double* pixels;  // [task_height][width of the map]
  T* pixel_lanes;  // [block keys][lanes]: the block's columns of the map, for each query of a strip
  std::int64_t* pixel_of_key;  // [block keys]: which of these columns a key belongs to, -1 outside the map
};

// Lays a SummaryWorkspace out in `memory`, itself first. Returns its size in bytes, which is all that happens where
// memory is null.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_summary(const SummaryProblem& problem, std::int64_t task_rows, char* memory) {
  const AttentionProblem& forward = problem.forward;
  std::int64_t used = round_up(static_cast<std::int64_t>(sizeof(SummaryWorkspace<T>)), 64);
  const auto take = [&](std::int64_t bytes) {
    char* start = memory ? memory + used : nullptr;
    used = round_up(used + bytes, 64);
    return start;
  };
  const auto take_elements = [&](std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  };
  const auto take_integers = [&](std::int64_t count) { return reinterpret_cast<std::int64_t*>(take(count * 8)); };

  SummaryWorkspace<T> work{};
  work.softcap = static_cast<T>(softcap_of<T>(forward) * kLog2E);
  const std::int64_t unit = row_unit<Shape>(forward);
  work.strips = reinterpret_cast<SummaryStrip<T>*>(take((task_rows + unit - 1) / unit * strips_of_unit<Shape>(forward) *
                                                        static_cast<std::int64_t>(sizeof(SummaryStrip<T>))));
  for_strips<Shape>(forward, task_rows, [&](std::int64_t first_row, int rows, int vectors) {
    SummaryStrip<T> strip{};
    strip.first_row = first_row;
    strip.rows = rows;
    strip.vectors = vectors;
    const std::int64_t lanes = vectors * kLanes<T>;
    strip.queries = take_elements(forward.head_dim * lanes);
    strip.lse = take_elements(lanes);
    strip.is_row = take_elements(lanes);
    strip.positions = take_integers(lanes);
    strip.first_key = take_integers(lanes);
    strip.end_key = take_integers(lanes);
    strip.local_begin = take_integers(lanes);
    strip.local_end = take_integers(lanes);
    if (problem.map.pixels.data) strip.map_row = take_integers(lanes);
    if (forward.alibi_slopes.data) strip.slopes = take_elements(lanes);
    for (T** sum : {&strip.sums.log_weight, &strip.sums.largest, &strip.sums.total, &strip.sums.square, &strip.sums.distance,
                    &strip.sums.sink, &strip.sums.local, &strip.sums.previous, &strip.sums.induced})
      *sum = take_elements(lanes);
    if (problem.top_weights.data) {
      strip.top.weights = take_elements(lanes * problem.top_count);
      strip.top.numbers =
          reinterpret_cast<typename LaneNumber<T>::Type*>(take_elements(lanes * problem.top_count));
      strip.top.keys = take_integers(lanes * problem.top_count);
    }
    if (memory) work.strips[work.strip_count] = strip;
    ++work.strip_count;
  });
  constexpr std::int64_t kBlock = Shape::kBlockKeys * Shape::kStripLanes;
  work.rows = take_elements(Shape::kStripLanes * round_up(forward.head_dim, kLanes<T>));
  work.weights = take_elements(kBlock);
  work.bias = take_elements(kBlock);
  work.keys = take_elements(Shape::kBlockKeys * forward.head_dim);
  work.columns = take_elements(Shape::kBlockKeys * kLanes<T>);
  work.column_rows = take_elements(Shape::kBlockKeys * kLanes<T>);
  if (problem.map.pixels.data) {
    work.pixels = reinterpret_cast<double*>(take(problem.map.task_height * problem.map.width * 8));
    work.pixel_lanes = take_elements(kBlock);
    work.pixel_of_key = take_integers(Shape::kBlockKeys);
  }
  if (memory) *reinterpret_cast<SummaryWorkspace<T>*>(memory) = work;
  return used;
}

}  // namespace
}  // namespace regard
