// Which keys of a block the rows of a decode see, key by key: the counterpart of
// ../strips/tiles.hpp, which works on tiles of rows.
#pragma once

#include "decode_workspace.hpp"

namespace regard {
namespace {

// Computes bias[k] of one row for `count` keys starting at `key`, in whole vectors.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void bias_of_row(const AttentionProblem& problem, const AttentionTask& task,
                                 int row, std::int64_t key, int count, DecodeWorkspace<T>& work,
                                 T* bias) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (int k = 0; k < count; ++k) bias[k] = T(0);
  const auto offset_in = [&](const Operand& mask) {
    return (task.row_begin + row) / group * mask.row_stride +
           (task.row_begin + row) % group * mask.head_stride + key * mask.column_stride;
  };
  if (task.bias) {
    const char* const row = static_cast<const char*>(task.bias) +
                            offset_in(problem.bias) * bytes_of(problem.bias.element);
    convert_mask_row(problem.bias.element, row, problem.bias.column_stride, count, bias);
    for (int k = 0; k < count; k += kLanes<T>) store(bias + k, within_limits<T>(load<T>(bias + k)));
  }
  if (task.alibi_slopes) {
    for (int k = 0; k < count; k += kLanes<T>) {
      T distance[kLanes<T>], within[kLanes<T>];
      for (int i = 0; i < kLanes<T>; ++i) {
        const int in_tile = (k + i) % Shape::kRows;
        distance[i] = static_cast<T>(work.positions[row] - (key + k + i - in_tile));
        within[i] = static_cast<T>(in_tile);
      }
      store(bias + k, with_alibi<T>(load<T>(bias + k), broadcast(work.slopes[row]),
                                    load<T>(distance), load<T>(within)));
    }
  }
  if (task.distance_bias) {
    const auto add = [&](const auto* table) {
      table += (task.row_begin + row) % group * problem.distance_bias.head_stride;
      for (int k = 0; k < count; k += kLanes<T>) {
        T values[kLanes<T>];
        for (int i = 0; i < kLanes<T>; ++i)
          values[i] =
              mask_value<T>(table[distance_column(problem, key + k + i - work.positions[row]) *
                                  problem.distance_bias.column_stride]);
        store(bias + k,
              with_distance_bias<T>(load<T>(bias + k), within_limits<T>(load<T>(values))));
      }
    };
    if (problem.distance_bias.element == Element::float32)
      add(static_cast<const float*>(task.distance_bias));
    else
      add(static_cast<const double*>(task.distance_bias));
  }
  const auto hide = [&](const unsigned char* mask, std::int64_t stride) {
    for (int k = 0; k < count; ++k)
      if (mask[k * stride] == 0) bias[k] = -kInfinity<T>;
  };
  if (task.mask)
    hide(static_cast<const unsigned char*>(task.mask) + offset_in(problem.mask),
         problem.mask.column_stride);
  if (work.mask_runs) {
    const MaskRun* run = work.mask_runs;
    while (run->end_lane <= row) ++run;
    unsigned char mask[Shape::kBlockKeys + kMaskRoom];
    write_mask_row(*problem.sparse_mask, work, row, *run, key, key + count, mask);
    hide(mask, 1);
  }
  const KeyInterval keys{work.first_key[row], work.end_key[row]}, sinks = work.keep_first;
  for (int k = 0; k < count; ++k) {
    const std::int64_t here = key + k;
    const bool is_sink_token = here >= sinks.begin && here < sinks.end;
    if (is_hidden(here, is_sink_token ? 0 : keys.begin, keys.end)) bias[k] = -kInfinity<T>;
  }
}

// Returns the steps of the block at `key` in which some row sees a key, one bit per step. Computes
// their bias if there is any.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE std::uint32_t see_block(const AttentionProblem& problem, const AttentionTask& task,
                                        std::int64_t key, DecodeWorkspace<T>& work) {
  constexpr int kStep = kDecodeStep<Shape>;
  constexpr int kBlock = round_up(Shape::kBlockKeys, kStep);
  static_assert(kBlock / kStep <= 32, "a step is a bit");
  const KeyInterval seen = seen_of_block(work.seen, key, Shape::kBlockKeys);
  const int begin = static_cast<int>(seen.begin), end = static_cast<int>(seen.end);
  work.has_bias = work.hides = false;
  if (begin >= end) return 0;
  const int first = begin / kStep, last = (end + kStep - 1) / kStep;
  bool sees_all = true;
  if (work.mask_runs) {
    const KeyInterval keys = up_to({key + first * kStep, key + last * kStep}, task.kv_len);
    const MaskSight sight = sight_of_mask(problem, work, keys.begin, keys.end);
    if (sight.kind == TileKind::hidden) return 0;
    sees_all = sight.kind == TileKind::visible && sight.keys.begin == keys.begin &&
               sight.keys.end == keys.end;
  }
  const std::uint32_t all =
      static_cast<std::uint32_t>((std::uint64_t{1} << last) - (std::uint64_t{1} << first));
  if (sees_all && !task.mask && !task.bias && !task.alibi_slopes && !task.distance_bias &&
      holds(work.shared, key + first * kStep, key + last * kStep))
    return all;

  work.has_bias = true;
  std::uint32_t steps = 0;
  for (int row = 0; row < work.rows; ++row) {
    T* bias = work.bias + row * kBlock;
    const int from = first * kStep;
    bias_of_row<Shape>(problem, task, row, key + from, end - from, work, bias + from);
    for (int k = end; k < last * kStep; ++k) bias[k] = -kInfinity<T>;
    for (int k = begin; k < end; ++k) {
      if (bias[k] == -kInfinity<T>)
        work.hides = true;
      else
        steps |= std::uint32_t{1} << (k / kStep);
    }
  }
  return steps;
}

}  // namespace
}  // namespace regard
