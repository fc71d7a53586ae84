// What one thread keeps while it works on one task: strips of queries with their running results, and one
// block's weights. Its size depends on head_dim and value_dim and on whether there is more than one chunk of
// keys, but not on the number of keys.
#pragma once

#include "score_rule.hpp"
#include "strip_rows.hpp"

namespace regard {
namespace {

template <class T>
struct Strip : StripRows<T> {
  T* queries;  // [head_dim][lanes], times query_scale
  // Where precision is int8 (int8/queries.hpp), each lane's factor of its query, and its score of what was
  // taken from all keys, their mean; null otherwise.
  T* query_scale;
  T* mean_score;

  int asked_rows;  // of the result's rows, prefetched so far
  bool is_fresh;   // no block has written to output yet
  T* output;       // [padded value_dim][lanes], relative to the reference
  SoftmaxState<T> state;
  T* block_sum;
  // The chunks before this one, merged; null where there is one chunk and no sink.
  bool total_is_fresh;  // nothing has been written to total_output yet
  SoftmaxState<T> total;
  T* total_output;
  T* reciprocal;  // of the final sum
};

template <class T>
struct Workspace {
  Strip<T>* strips;
  int strip_count;
  T softcap;       // the largest score, in log2 units; 0 where scores are not capped
  T* weights;      // [block keys][lanes]: the block's weights of the strip at work
  T* bias;         // [block keys][lanes]: what is added to the block's scores, in log2 units
  T* keys;         // [block keys][head_dim]: a block that cannot be read in place
  T* tail_keys;    // [tile rows][head_dim]: the last keys of an array, padded to a tile
  T* values;       // [block keys][padded value_dim]
  T* key_scales;   // [block keys], of rows of int8, as are value_scales; null otherwise
  T* value_scales;
};

template <class Shape>
REGARD_INLINE bool merges_chunks(const AttentionProblem& problem) {
  return problem.sinks || problem.kv_len > Shape::kChunkKeys;
}

// Lays a Workspace out in `memory`, itself first. Returns its size in bytes, which is all that
// happens where memory is null.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out(const AttentionProblem& problem, std::int64_t task_rows,
                                     char* memory) {
  std::int64_t used = round_up(static_cast<std::int64_t>(sizeof(Workspace<T>)), 64);
  const auto take = [&](std::int64_t bytes) {
    char* start = memory ? memory + used : nullptr;
    used = round_up(used + bytes, 64);
    return start;
  };
  const auto take_elements = [&](std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  };
  const auto take_state = [&](std::int64_t lanes) {
    return SoftmaxState<T>{take_elements(lanes), take_elements(lanes), take_elements(lanes)};
  };
  const std::int64_t padded_value_dim = round_up(problem.value_dim, Shape::kRows);

  Workspace<T> work{};
  work.softcap = static_cast<T>(softcap_of<T>(problem) * kLog2E);
  const std::int64_t unit = row_unit<Shape>(problem);
  work.strips = reinterpret_cast<Strip<T>*>(take((task_rows + unit - 1) / unit *
                                                 strips_of_unit<Shape>(problem) *
                                                 static_cast<std::int64_t>(sizeof(Strip<T>))));
  for_strips<Shape>(problem, task_rows, [&](std::int64_t first_row, int rows, int vectors) {
    Strip<T> strip{};
    strip.first_row = first_row;
    strip.rows = rows;
    strip.vectors = vectors;
    const std::int64_t lanes = vectors * kLanes<T>;
    strip.queries = take_elements(problem.head_dim * lanes);
    if (problem.precision == Precision::int8) {
      strip.query_scale = take_elements(lanes);
      strip.mean_score = take_elements(lanes);
    }
    strip.output = take_elements(padded_value_dim * lanes);
    strip.state = take_state(lanes);
    strip.block_sum = take_elements(lanes);
    if (merges_chunks<Shape>(problem)) {
      strip.total = take_state(lanes);
      strip.total_output = take_elements(padded_value_dim * lanes);
    }
    strip.reciprocal = take_elements(lanes);
    strip.positions = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    strip.first_key = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    strip.end_key = reinterpret_cast<std::int64_t*>(take(lanes * 8));
    if (problem.alibi_slopes.data) strip.slopes = take_elements(lanes);
    if (memory) work.strips[work.strip_count] = strip;
    ++work.strip_count;
  });
  const std::int64_t lanes =
      round_up(task_rows < Shape::kStripLanes ? task_rows : Shape::kStripLanes, kLanes<T>);
  const std::int64_t block_keys =
      round_up(problem.kv_len < Shape::kBlockKeys ? problem.kv_len : Shape::kBlockKeys,
               Shape::kRows);
  work.weights = take_elements(block_keys * lanes);
  work.bias = take_elements(block_keys * lanes);
  work.keys = take_elements(block_keys * problem.head_dim);
  work.tail_keys = take_elements(Shape::kRows * problem.head_dim);
  work.values = take_elements(block_keys * padded_value_dim);
  if (problem.key.element == Element::int8) {
    work.key_scales = take_elements(block_keys);
    work.value_scales = take_elements(block_keys);
  }
  if (memory) *reinterpret_cast<Workspace<T>*>(memory) = work;
  return used;
}

}  // namespace
}  // namespace regard
