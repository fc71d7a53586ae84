// What is added to the scores of a strip and a block, in lanes: a float mask, ALiBi, and -inf where
// a key is hidden by position.
#pragma once

#include "../../simd/transpose.hpp"
#include "../elements.hpp"
#include "../pack.hpp"
#include "mask_rows.hpp"
#include "score_rule.hpp"
#include "visibility.hpp"

namespace regard {
namespace {

// bias[key][lane] = the float mask, for the `keys` keys from `key` on.
template <class Shape, class M, class T = typename Shape::Element>
REGARD_NOINLINE void load_bias(const AttentionProblem& problem, const AttentionTask& task,
                               const StripRows<T>& strip, std::int64_t key, int keys, T* bias) {
  const int width = strip.vectors * kLanes<T>;
  const std::int64_t stride = problem.bias.column_stride;
  const M* rows[Shape::kStripLanes];
  mask_rows(problem, problem.bias, task.bias, strip, key, rows);
  if (lanes_share_a_row(problem, problem.bias)) {
    const M* row = rows[0];
    for (int k = 0; k < keys; ++k) {
      const Vec<T> value = in_log2_units<T>(broadcast(mask_value<T>(row[k * stride])));
      for (int lane = 0; lane < width; lane += kLanes<T>) store(bias + k * width + lane, value);
    }
    return;
  }
  if constexpr (sizeof(M) == sizeof(T)) {
    for (int lane = 0; lane < width; lane += kLanes<T>)
      rows_to_lanes<T>(rows + lane, kLanes<T>, stride, keys, bias + lane, width,
                       [](Vec<T> value) { return in_log2_units<T>(value); });
  } else {
    for (int k = 0; k < keys; ++k)
      for (int lane = 0; lane < width; lane += kLanes<T>) {
        T gathered[kLanes<T>];
        for (int i = 0; i < kLanes<T>; ++i) gathered[i] = mask_value<T>(rows[lane + i][k * stride]);
        store(bias + k * width + lane, in_log2_units<T>(load<T>(gathered)));
      }
  }
}

// bias -= slope |position - key|.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_alibi(const StripRows<T>& strip, std::int64_t key, bool bias_is_set,
                               T* bias) {
  const int width = strip.vectors * kLanes<T>;
  T distance[Shape::kStripLanes];
  for (int lane = 0; lane < width; ++lane)
    distance[lane] = static_cast<T>(strip.positions[lane] - key);
  for (int lane = 0; lane < width; lane += kLanes<T>) {
    const Vec<T> from = load(distance + lane);
    const Vec<T> slope = load(strip.slopes + lane);
    for (int r = 0; r < Shape::kRows; ++r) {
      T* at = bias + r * width + lane;
      const Vec<T> added = bias_is_set ? load<T>(at) : Vec<T>{};
      store(at, with_alibi<T>(added, slope, from, broadcast(static_cast<T>(r))));
    }
  }
}

// The column of a table of distances for a key that is `distance` after its query.
REGARD_INLINE std::int64_t distance_column(const AttentionProblem& problem, std::int64_t distance) {
  return clamp(problem.distances - 1 + distance, 0, 2 * problem.distances - 2);
}

// bias += the table's number for key - position. M is the table's element.
template <class Shape, class M, class T = typename Shape::Element>
REGARD_NOINLINE void add_distance_bias(const AttentionProblem& problem, const AttentionTask& task,
                                       const StripRows<T>& strip, std::int64_t key,
                                       bool bias_is_set, T* bias) {
  constexpr int kRows = Shape::kRows;
  const int width = strip.vectors * kLanes<T>;
  const std::int64_t group = problem.heads / problem.kv_heads;
  const Operand& operand = problem.distance_bias;
  const M* const table = static_cast<const M*>(task.distance_bias);
  // Neighboring lanes of one head read neighboring numbers, from the last lane to the first.
  const std::int64_t nearest = key - strip.positions[strip.rows - 1],
                     farthest = key + kRows - 1 - strip.positions[0];
  const bool is_inside = nearest > -problem.distances && farthest < problem.distances;
  const bool reads_vectors = sizeof(M) == sizeof(T) && group == 1 && operand.column_stride == 1 &&
                             is_inside && strip.rows == width;
  const std::int64_t first_head = strip.first_row % group;
  for (int lane = 0; lane < width; lane += kLanes<T>)
    for (int r = 0; r < kRows; ++r) {
      T* const at = bias + r * width + lane;
      Vec<T> value{};
      if constexpr (sizeof(M) == sizeof(T)) {
        if (reads_vectors)
          value = reversed<T>(load(table + (problem.distances - 1 + key + r -
                                            strip.positions[lane + kLanes<T> - 1])));
      }
      if (!reads_vectors) {
        T lanes[kLanes<T>];
        for (int i = 0; i < kLanes<T>; ++i) {
          const std::int64_t head = (first_head + lane + i) % group,
                             column = distance_column(problem, key + r - strip.positions[lane + i]);
          lanes[i] = mask_value<T>(table[head * operand.head_stride + column * operand.column_stride]);
        }
        value = load<T>(lanes);
      }
      store(at, with_distance_bias<T>(bias_is_set ? load<T>(at) : Vec<T>{}, in_log2_units<T>(value)));
    }
}

// Writes -inf into one tile's bias where a key lies outside what the lane sees by position.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void hide_by_position(const StripRows<T>& strip, std::int64_t key, bool bias_is_set,
                                      T* bias) {
  constexpr int kRows = Shape::kRows;
  const int width = strip.vectors * kLanes<T>;
  T first[Shape::kStripLanes], end[Shape::kStripLanes];
  for (int lane = 0; lane < width; ++lane) {
    first[lane] = static_cast<T>(clamp(strip.first_key[lane] - key, 0, kRows));
    end[lane] = static_cast<T>(clamp(strip.end_key[lane] - key, 0, kRows));
  }
  const std::int64_t sinks_begin = strip.keep_first.begin - key,
                     sinks_end = strip.keep_first.end - key;
  for (int lane = 0; lane < width; lane += kLanes<T>) {
    const Vec<T> from = load(first + lane), to = load(end + lane);
    for (int r = 0; r < kRows; ++r) {
      T* at = bias + r * width + lane;
      const Vec<T> here = broadcast(static_cast<T>(r));
      const bool is_sink_token = r >= sinks_begin && r < sinks_end;
      store(at, select<T>(is_hidden(here, is_sink_token ? Vec<T>{} : from, to),
                          broadcast(-kInfinity<T>), bias_is_set ? load<T>(at) : Vec<T>{}));
    }
  }
}

}  // namespace
}  // namespace regard
