// The terms that are added to the scores of a strip and a block, in lanes: a float mask, ALiBi, a
// distance bias, and -inf if a key is hidden by position.
#pragma once

#include "../../simd/transpose.hpp"
#include "../elements.hpp"
#include "../pack.hpp"
#include "score_rule.hpp"
#include "visibility.hpp"

namespace regard {
namespace {

// Converts `keys` numbers of one row of a float mask to the type of scores, in whole vectors.
template <class T>
REGARD_NOINLINE void convert_mask_row(Element element, const void* row, std::int64_t stride,
                                      int keys, T* to) {
  with_input_element<double>(element, [&]<class M>(ElementType<M>) {
    const M* const from = static_cast<const M*>(row);
    for (int k = 0; k < keys; k += kLanes<T>) {
      T part[kLanes<T>] = {};
      for (int i = 0; i < kLanes<T> && i < keys - k; ++i)
        part[i] = mask_value<T>(widen(from[(k + i) * stride]));
      store(to + k, load<T>(part));
    }
  });
}

// bias[key][lane] = the float mask, for `keys` keys starting at `key`.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void load_bias(const AttentionProblem& problem, const AttentionTask& task,
                               const StripRows<T>& strip, std::int64_t key, int keys, T* bias) {
  constexpr int kWidth = kLanes<T>;
  const int width = strip.vectors * kWidth;
  const Element element = problem.bias.element;
  const std::int64_t bytes = bytes_of(element), stride = problem.bias.column_stride;
  Operand in_bytes = problem.bias;
  in_bytes.row_stride *= bytes;
  in_bytes.head_stride *= bytes;
  in_bytes.column_stride *= bytes;
  const char* rows[Shape::kStripLanes];
  mask_rows(problem, in_bytes, task.bias, strip, key, rows);
  if (lanes_share_a_row(problem, problem.bias)) {
    T row[Shape::kBlockKeys + kWidth];
    convert_mask_row(element, rows[0], stride, keys, row);
    for (int k = 0; k < keys; ++k) {
      const Vec<T> value = within_limits<T>(broadcast(row[k]));
      for (int lane = 0; lane < width; lane += kWidth)
        store(bias + k * Shape::kStripLanes + lane, value);
    }
    return;
  }
  with_input_element<double>(element, [&]<class M>(ElementType<M>) {
    // Only float32 has fast conversions from 16 bits. Of float64, only -inf hides in float32.
    constexpr bool kByVectors = sizeof(M) == sizeof(T) || (sizeof(T) == 4 && sizeof(M) == 2);
    for (int lane = 0; lane < width; lane += kWidth) {
      const M* from[kWidth];
      for (int i = 0; i < kWidth; ++i) from[i] = reinterpret_cast<const M*>(rows[lane + i]);
      if constexpr (kByVectors) {
        rows_to_lanes<T>(from, kWidth, stride, keys, bias + lane, Shape::kStripLanes,
                         [](Vec<T> value) { return within_limits<T>(value); });
      } else {
        for (int k = 0; k < keys; ++k) {
          T gathered[kWidth];
          for (int i = 0; i < kWidth; ++i) gathered[i] = mask_value<T>(widen(from[i][k * stride]));
          store(bias + k * Shape::kStripLanes + lane, within_limits<T>(load<T>(gathered)));
        }
      }
    }
  });
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
      T* at = bias + r * Shape::kStripLanes + lane;
      const Vec<T> added = bias_is_set ? load<T>(at) : Vec<T>{};
      store(at, with_alibi<T>(added, slope, from, broadcast(static_cast<T>(r))));
    }
  }
}

// The column of a table of distances for a key that is `distance` after its query.
REGARD_INLINE std::int64_t distance_column(const AttentionProblem& problem, std::int64_t distance) {
  return clamp(problem.distances - 1 + distance, 0, 2 * problem.distances - 2);
}

// The entries of a distance table that a strip and a block need, from the last key to the first
// and, for each key, head by head. The lanes of a key read adjacent entries:
//
//   of[(last key - key) * group + the lane's row - the strip's first query's first row]
template <class Shape, class T = typename Shape::Element>
struct BlockDistances {
  // Entries of larger groups are gathered one by one, because a strip has only a few of their
  // heads.
  static constexpr int kMostGroup = 8;
  T of[(Shape::kBlockKeys + Shape::kStripLanes) * kMostGroup + 2 * Shape::kStripLanes];
  std::int64_t last_key;
};

template <class T>
REGARD_INLINE T distance_number(const AttentionProblem& problem, const AttentionTask& task,
                                std::int64_t head, std::int64_t distance) {
  const Operand& operand = problem.distance_bias;
  const std::int64_t at =
      head * operand.head_stride + distance_column(problem, distance) * operand.column_stride;
  return operand.element == Element::float32
             ? mask_value<T>(static_cast<const float*>(task.distance_bias)[at])
             : mask_value<T>(static_cast<const double*>(task.distance_bias)[at]);
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void find_distances(const AttentionProblem& problem, const AttentionTask& task,
                                    const StripRows<T>& strip, std::int64_t key, int keys,
                                    BlockDistances<Shape>& distances) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  distances.last_key = key + keys - 1;
  if (group > distances.kMostGroup) return;
  const std::int64_t last_lane = strip.first_row % group + strip.vectors * kLanes<T> - 1;
  const std::int64_t count = (keys + last_lane / group) * group;
  std::int64_t distance = distances.last_key - strip.positions[0];
  for (std::int64_t i = 0; i < count; --distance)
    for (std::int64_t head = 0; head < group; ++head, ++i)
      distances.of[i] = distance_number<T>(problem, task, head, distance);
  for (std::int64_t i = 0; i < count; i += kLanes<T>)
    store(distances.of + i, within_limits<T>(load<T>(distances.of + i)));
}

// bias += the table's entries, for the tile at `key`.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_distance_bias(const AttentionProblem& problem, const AttentionTask& task,
                                       const StripRows<T>& strip,
                                       const BlockDistances<Shape>& distances, std::int64_t key,
                                       int keys, bool bias_is_set, T* bias) {
  const int width = strip.vectors * kLanes<T>;
  const std::int64_t group = problem.heads / problem.kv_heads, first_head = strip.first_row % group;
  for (int r = 0; r < keys; ++r) {
    const T* from = distances.of + (distances.last_key - key - r) * group + first_head;
    T gathered[Shape::kStripLanes];
    if (group > distances.kMostGroup) {
      for (int lane = 0; lane < width; ++lane)
        gathered[lane] = distance_number<T>(problem, task, (first_head + lane) % group,
                                            key + r - strip.positions[lane]);
      for (int lane = 0; lane < width; lane += kLanes<T>)
        store(gathered + lane, within_limits<T>(load<T>(gathered + lane)));
      from = gathered;
    }
    for (int lane = 0; lane < width; lane += kLanes<T>) {
      T* const at = bias + r * Shape::kStripLanes + lane;
      store(at, with_distance_bias<T>(bias_is_set ? load<T>(at) : Vec<T>{}, load(from + lane)));
    }
  }
}

// Writes -inf into one tile's bias for each key that the lane does not see by position.
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
      T* at = bias + r * Shape::kStripLanes + lane;
      const Vec<T> here = broadcast(static_cast<T>(r));
      const bool is_sink_token = r >= sinks_begin && r < sinks_end;
      store(at, select<T>(is_hidden(here, is_sink_token ? Vec<T>{} : from, to),
                          broadcast(-kInfinity<T>), bias_is_set ? load<T>(at) : Vec<T>{}));
    }
  }
}

}  // namespace
}  // namespace regard
