// Which keys of a block the rows of a decode see, key by key: the counterpart of
// ../strips/tiles.hpp, which works on tiles of rows.
#pragma once

#include "decode_workspace.hpp"

namespace regard {
namespace {

// Computes bias[k] of one row for `count` keys starting at `key`, in whole vectors.
REGARD_NOINLINE void bias_of_row(const AttentionProblem& problem, const AttentionTask& task,
                                 int row, std::int64_t key, int count, DecodeWorkspace& work,
                                 float* bias) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  for (int k = 0; k < count; ++k) bias[k] = 0.0f;
  const auto offset_in = [&](const Operand& mask) {
    return (task.row_begin + row) / group * mask.row_stride +
           (task.row_begin + row) % group * mask.head_stride + key * mask.column_stride;
  };
  if (task.bias) {
    const char* const row = static_cast<const char*>(task.bias) +
                            offset_in(problem.bias) * bytes_of(problem.bias.element);
    convert_mask_row(problem.bias.element, row, problem.bias.column_stride, count, bias);
    for (int k = 0; k < count; k += kWidth)
      store(bias + k, within_limits<float>(load<float>(bias + k)));
  }
  if (task.alibi_slopes) {
    for (int k = 0; k < count; k += kWidth) {
      float distance[kWidth], within[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        const int in_tile = (k + i) % DecodeShape::kRows;
        distance[i] = static_cast<float>(work.positions[row] - (key + k + i - in_tile));
        within[i] = static_cast<float>(in_tile);
      }
      store(bias + k, with_alibi<float>(load<float>(bias + k), broadcast(work.slopes[row]),
                                        load<float>(distance), load<float>(within)));
    }
  }
  if (task.distance_bias) {
    for (int k = 0; k < count; k += kWidth) {
      float values[kWidth];
      for (int i = 0; i < kWidth; ++i)
        values[i] = distance_number<float>(problem, task, (task.row_begin + row) % group,
                                           key + k + i - work.positions[row]);
      store(bias + k, with_distance_bias<float>(load<float>(bias + k),
                                                within_limits<float>(load<float>(values))));
    }
  }
  const auto hide = [&](const unsigned char* mask, std::int64_t stride) {
    for (int k = 0; k < count; ++k)
      if (mask[k * stride] == 0) bias[k] = -kInfinity<float>;
  };
  if (task.mask)
    hide(static_cast<const unsigned char*>(task.mask) + offset_in(problem.mask),
         problem.mask.column_stride);
  if (work.mask_runs) {
    MaskRun* run = work.mask_runs;
    while (run->end_lane <= row) ++run;
    unsigned char mask[kDecodeBlock + kMaskRoom];
    write_mask_row(*problem.sparse_mask, work, row, *run, key, key + count, mask);
    hide(mask, 1);
  }
  const KeyInterval keys{work.first_key[row], work.end_key[row]}, sinks = work.keep_first;
  for (int k = 0; k < count; ++k) {
    const std::int64_t here = key + k;
    const bool is_sink_token = here >= sinks.begin && here < sinks.end;
    if (is_hidden(here, is_sink_token ? 0 : keys.begin, keys.end)) bias[k] = -kInfinity<float>;
  }
}

// Returns the steps of the block at `key` in which some row sees a key, one bit per step. Computes
// their bias if there is any. If keys are gathered, `gathered` are the steps that contain them.
REGARD_NOINLINE std::uint32_t see_block(const AttentionProblem& problem, const AttentionTask& task,
                                        std::int64_t key, std::uint32_t gathered,
                                        DecodeWorkspace& work) {
  const KeyInterval seen = seen_of_block(work.seen, key, kDecodeBlock);
  const int begin = static_cast<int>(seen.begin), end = static_cast<int>(seen.end);
  work.has_bias = work.hides = false;
  if (begin >= end) return 0;
  const std::uint32_t all = steps_of(begin, end);
  if (!gathered) {
    const std::int64_t first = key + begin / kDecodeStep * kDecodeStep,
                       last = key + round_up(end, kDecodeStep);
    bool sees_all = true;
    if (work.mask_runs) {
      const KeyInterval keys = up_to({first, last}, task.kv_len);
      const MaskSight sight = sight_of_mask(problem, work, keys.begin, keys.end);
      if (sight.kind == TileKind::hidden) return 0;
      sees_all = sight.kind == TileKind::visible && sight.keys.begin == keys.begin &&
                 sight.keys.end == keys.end;
    }
    if (sees_all && !task.mask && !task.bias && !task.alibi_slopes && !task.distance_bias &&
        holds(work.shared, first, last))
      return all;
  }

  work.has_bias = true;
  std::uint32_t steps = 0;
  for (int row = 0; row < work.rows; ++row) {
    float* bias = work.bias + row * kDecodeBlock;
    for_runs_of_steps(gathered ? gathered : all, [&](int from, int past) {
      const int to = past < end ? past : end;
      bias_of_row(problem, task, row, key + from, to - from, work, bias + from);
      for (int k = to; k < past; ++k) bias[k] = -kInfinity<float>;
      for (int k = from > begin ? from : begin; k < to; ++k) {
        if (bias[k] == -kInfinity<float>)
          work.hides = true;
        else
          steps |= std::uint32_t{1} << (k / kDecodeStep);
      }
    });
  }
  return steps;
}

}  // namespace
}  // namespace regard
