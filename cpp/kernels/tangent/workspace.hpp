// What one thread keeps while it works on one task: strips of queries with their running results, and what the block at
// work has of weights.
#pragma once

#include "../../problem/tangent.hpp"
#include "../attention/visibility.hpp"

namespace regard {
namespace {

template <class T>
struct TangentStrip : StripRows<T> {
  T* queries;          // [head_dim][lanes], times query_scale
  T* tangent_queries;  // likewise
  bool is_fresh;       // no block has written to the outputs yet
  T* output;           // [padded value_dim][lanes]: sum of P value, relative to the reference
  T* tangent_output;   // [padded value_dim][lanes]: sum of P tangent_score value + P tangent_value
  SoftmaxState<T> state;
  T* tangent_sum;  // [lanes]: sum of P tangent_score
};

template <class T>
struct TangentWorkspace {
  TangentStrip<T>* strips;
  int strip_count;
  T softcap;        // the largest score, in log2 units; 0 where scores are not capped
  T* rows;          // [lanes][head_dim]: a strip's queries, on their way into lanes
  T* weights;       // [block keys][lanes]: scores, then P
  T* tangents;      // [block keys][lanes]: tangents of scores, then times P
  T* bias;          // [block keys][lanes]
  T* keys;          // [block keys][padded head_dim], as are tangent_keys: what cannot be read in place
  T* tangent_keys;
  T* values;        // [block keys][padded value_dim], as are tangent_values
  T* tangent_values;
};

// Lays a TangentWorkspace out in `memory`, itself first. Returns its size in bytes, which is all that happens where
// memory is null.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_tangent(const TangentProblem& problem, std::int64_t task_rows, char* memory) {
  const AttentionProblem& forward = problem.forward;
  std::int64_t used = round_up(static_cast<std::int64_t>(sizeof(TangentWorkspace<T>)), 64);
  const auto take = [&](std::int64_t bytes) {
    char* start = memory ? memory + used : nullptr;
    used = round_up(used + bytes, 64);
    return start;
  };
  const auto take_elements = [&](std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  };
  const std::int64_t value_dim = round_up(forward.value_dim, Shape::kRows);

  TangentWorkspace<T> work{};
  work.softcap = static_cast<T>(softcap_of<T>(forward) * kLog2E);
  const std::int64_t unit = row_unit<Shape>(forward);
  work.strips = reinterpret_cast<TangentStrip<T>*>(take((task_rows + unit - 1) / unit * strips_of_unit<Shape>(forward) *
                                                        static_cast<std::int64_t>(sizeof(TangentStrip<T>))));
  for_strips<Shape>(forward, task_rows, [&](std::int64_t first_row, int rows, int vectors) {
    TangentStrip<T> strip{};
    strip.first_row = first_row;
    strip.rows = rows;
    strip.vectors = vectors;
    const std::int64_t lanes = vectors * kLanes<T>;
    strip.queries = take_elements(forward.head_dim * lanes);
    strip.tangent_queries = take_elements(forward.head_dim * lanes);
    strip.output = take_elements(value_dim * lanes);
    strip.tangent_output = take_elements(value_dim * lanes);
    strip.state = {take_elements(lanes), take_elements(lanes), take_elements(lanes)};
    strip.tangent_sum = take_elements(lanes);
    strip.positions = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    strip.first_key = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    strip.end_key = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    if (forward.alibi_slopes.data) strip.slopes = take_elements(lanes);
    if (memory) work.strips[work.strip_count] = strip;
    ++work.strip_count;
  });
  constexpr std::int64_t kBlock = Shape::kBlockKeys * Shape::kStripLanes;
  work.rows = take_elements(Shape::kStripLanes * round_up(forward.head_dim, kLanes<T>));
  work.weights = take_elements(kBlock);
  work.tangents = take_elements(kBlock);
  work.bias = take_elements(kBlock);
  work.keys = take_elements(Shape::kBlockKeys * forward.head_dim);
  work.tangent_keys = take_elements(Shape::kBlockKeys * forward.head_dim);
  work.values = take_elements(Shape::kBlockKeys * value_dim);
  work.tangent_values = take_elements(Shape::kBlockKeys * value_dim);
  if (memory) *reinterpret_cast<TangentWorkspace<T>*>(memory) = work;
  return used;
}

}  // namespace
}  // namespace regard
