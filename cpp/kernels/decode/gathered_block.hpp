// Keys and values that are gathered for a decode (../strips/scattered.hpp): copied side by side, in
// their own type if they could be read in place.
#pragma once

#include "decode_masks.hpp"
#include "scores.hpp"
#include "values.hpp"

namespace regard {
namespace {

// A block of the gathered keys of several blocks, without scales.
REGARD_NOINLINE DecodeBlock gather_block(const AttentionProblem& problem, const AttentionTask& task,
                                         const DecodeWorkspace& work) {
  const GatheredKeys& gathered = work.gathered;
  DecodeBlock block{};
  block.count = gathered.count;
  block.steps = steps_of(0, gathered.count);
  const auto gather = [&](DecodeRows& to, const KvRows& rows, bool in_place, std::int64_t columns,
                          std::int64_t padded_columns, float* copies) {
    to.element = in_place ? rows.operand.element : Element::float32;
    to.stride = padded_columns;
    const std::int64_t bytes = padded_columns * bytes_of(to.element);
    char* copy = reinterpret_cast<char*>(copies);
    for_gathered(rows, columns, gathered, [&](int i) {
      if (i % kDecodeStep == 0) to.first[i / kDecodeStep] = copy;
      if (in_place)
        __builtin_memcpy(copy, row_at(rows, gathered.key[i]), static_cast<std::size_t>(bytes));
      else
        copy_rows(rows, gathered.key[i], 1, columns, reinterpret_cast<float*>(copy), 1,
                  padded_columns);
      copy += bytes;
    });
  };
  gather(block.keys, keys_of(problem, task), decodes_keys_in_place(problem), problem.head_dim,
         work.padded_head_dim, work.keys);
  gather(block.values, values_of(problem, task), decodes_values_in_place(problem),
         problem.value_dim, work.padded_value_dim, work.values);
  return block;
}

// Lists the keys of the blocks from `key` on that are gathered together, gathers keys and values, and
// computes the products of the keys.
REGARD_NOINLINE DecodeBlock score_gathered(const AttentionProblem& problem,
                                           const AttentionTask& task, std::int64_t key,
                                           std::int64_t key_end, DecodeWorkspace& work) {
  list_blocks<DecodeShape>(problem, work, key, key_end, work.gathered);
  if (work.gathered.count == 0) return {};
  const DecodeBlock block = gather_block(problem, task, work);
  Ahead nothing;
  score_steps(block, work, nothing);
  for (int row = 0; row < work.rows; ++row)
    for (int i = row * kDecodeBlock; i < row * kDecodeBlock + block.count; i += kWidth)
      store(work.gathered_scores + i, load<float>(work.scores + i));
  return block;
}

// Adds the gathered keys and values of the block at `key`.
REGARD_NOINLINE void add_gathered(const AttentionProblem& problem, const AttentionTask& task,
                                  std::int64_t key, DecodeBlock& of_gathered,
                                  DecodeWorkspace& work) {
  const std::int64_t* const keys = work.gathered.key;
  of_gathered.seen = next_gathered_block<DecodeShape>(key, work.gathered);
  of_gathered.steps = steps_of(of_gathered.seen.begin, of_gathered.seen.end);
  const int begin = static_cast<int>(of_gathered.seen.begin),
            end = static_cast<int>(of_gathered.seen.end);
  std::uint32_t steps = 0;
  for (int i = begin; i < end; ++i) steps |= std::uint32_t{1} << ((keys[i] - key) / kDecodeStep);
  if (steps == 0 || see_block(problem, task, key, steps, work) == 0) return;
  const KvRows key_rows = keys_of(problem, task), value_rows = values_of(problem, task);
  const auto scales_at_places = [&](const KvRows& rows, float* scales) {
    for (int i = begin; scales && i < end; ++i)
      copy_scales(rows, keys[i], 1, scales + (keys[i] - key), 1);
  };
  scales_at_places(key_rows, work.key_scales);
  scales_at_places(value_rows, work.value_scales);
  for (int row = 0; row < work.rows; ++row) {
    float* const scores = work.scores + row * kDecodeBlock;
    for_steps(steps, [&](int step) {
      for (int k = step; k < step + kDecodeStep; k += kWidth) store(scores + k, Vec<float>{});
    });
    for (int i = begin; i < end; ++i)
      scores[keys[i] - key] = work.gathered_scores[row * kDecodeBlock + i];
    weigh_row(problem, task, key, steps, row, work);
    float weights[kDecodeBlock];
    for (int i = begin; i < end; ++i) weights[i] = scores[keys[i] - key];
    for (int i = begin; i < end; ++i) scores[i] = weights[i];
  }
  Ahead nothing;
  add_decode_values(of_gathered, work, nothing);
}

}  // namespace
}  // namespace regard
