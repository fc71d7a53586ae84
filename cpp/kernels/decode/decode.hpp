// output = softmax(scores) value for a few rows of one kv head: one or a few queries of each head
// of a group. Keys and values are read once for all rows, at the speed of memory.
//
//   for a block of keys at an absolute position
//     for a step of keys (a vector)           keys in lanes, or rows in lanes (scores.hpp)
//       scores of every row += key query
//     weights of every row                    along the keys
//     for a panel of value dimensions         dimensions in lanes
//       output of every row += weight value
//
// AttentionForward keeps queries in lanes; a single query would leave 15 of 16 lanes empty. Every
// number results from the same operations in the same order here, so both kernels return the same
// bits, and only speed decides which of them runs.
#pragma once

#include <initializer_list>

#include "../strips/seen_blocks.hpp"
#include "scores.hpp"
#include "values.hpp"
#include "gathered_block.hpp"
#include "../kernel_table.hpp"
#include "weights.hpp"

namespace regard {
namespace {

struct AttentionDecode {
  static constexpr DecodeKernels kernels() {
    return {
        .kernel =
            {
                .pass = {workspace_bytes, begin, advance, finish},
                .copies_keys = copies_keys,
                .copies_values = copies_values,
                .columns = kWidth,
                .begin_count = begin_count,
                .count = count_steps,
                .tile_rows = kDecodeRows,
                .tile_keys = kDecodeStep,
                .write_weights = nullptr,
                .merge = merge,
            },
        .most_rows = kDecodeRows,
        .reads_four_bits = kDecodesOtherTypes,
    };
  }

  static bool copies_keys(const AttentionProblem& problem) {
    return !decodes_keys_in_place(problem);
  }

  static bool copies_values(const AttentionProblem& problem) {
    return !decodes_values_in_place(problem);
  }

  static std::int64_t workspace_bytes(const AttentionProblem& problem, std::int64_t) {
    return lay_out_decode(problem, nullptr);
  }

  static SeenKeys begin(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    lay_out_decode(problem, memory);
    DecodeWorkspace& work = *static_cast<DecodeWorkspace*>(memory);
    const SeenKeys keys = locate(problem, task, work);
    pack_decode_queries(problem, task, work);
    start_state(work.state, kDecodeLanes);
    work.is_fresh = true;
    work.chunk = 0;
    start_state(work.total, kDecodeLanes);
    work.total_is_fresh = true;
    if (problem.sinks) start_with_sinks(problem, task, task.row_begin, work.total, kDecodeLanes);
    return keys;
  }

  // Adds the keys of [key_begin, key_end); key_begin is a multiple of kBlockKeys.
  static void advance(const AttentionProblem& problem, const AttentionTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    DecodeWorkspace& work = *static_cast<DecodeWorkspace*>(memory);
    DecodeBlock of_gathered{};
    work.gathered.end = 0;
    const auto add_block = [&](std::int64_t key, std::int64_t next) {
      if (key / DecodeShape::kChunkKeys != work.chunk) {
        work.chunk = key / DecodeShape::kChunkKeys;
        if (!work.is_fresh) merge_decode_chunk(work);
      }
      if (work.gathered.key && key >= work.gathered.end)
        of_gathered = score_gathered(problem, task, key, key_end, work);
      if (key < work.gathered.end) return add_gathered(problem, task, key, of_gathered, work);
      const std::uint32_t steps = see_block(problem, task, key, 0, work);
      if (steps == 0) return;
      const DecodeBlock block = decode_block(problem, task, key, steps, work);
      Ahead ahead;
      if (next < key_end)
        look_ahead(problem, task, next, work, ahead);
      else if (task.next && key_end == work.seen.window.end)
        look_ahead(problem, *task.next, next_block_seen<DecodeShape>(work.seen, 0, key_end), work,
                   ahead);
      score_steps(block, work, ahead);
      ahead.ask_lines(kAheadOfWeights);
      for (int row = 0; row < work.rows; ++row) weigh_row(problem, task, key, steps, row, work);
      add_decode_values(block, work, ahead);
    };
    over_blocks_seen<DecodeShape>(problem, &work, 1, key_begin, key_end, add_block);
  }

  static void merge(const void* part, void* memory) {
    const DecodeWorkspace& gathered = *static_cast<const DecodeWorkspace*>(part);
    if (!gathered.is_fresh) merge_part(gathered, *static_cast<DecodeWorkspace*>(memory));
  }

  // Divides by the sums and writes the output and lse.
  static void finish(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    DecodeWorkspace& work = *static_cast<DecodeWorkspace*>(memory);
    if (!work.is_fresh) merge_decode_chunk(work);
    const std::int64_t group = problem.heads / problem.kv_heads;
    float reciprocal[kDecodeLanes];
    for (int lane = 0; lane < kDecodeLanes; lane += kWidth)
      store(reciprocal + lane, reciprocal_of_sum<float>(load(work.total.sum + lane)));
    with_result_element<float>(problem.output.element, [&](auto element) {
      using To = typename decltype(element)::Type;
      for (int row = 0; row < work.rows; ++row) {
        const std::int64_t query = (task.row_begin + row) / group,
                           head = (task.row_begin + row) % group;
        To* const to = static_cast<To*>(task.output) + query * problem.output.row_stride +
                       head * problem.output.head_stride;
        const float* const from = work.total_output + row * work.padded_value_dim;
        // + 0 turns a product of -0.0 into 0, as in AttentionForward.
        write_row<float>(to, problem.output.column_stride, problem.value_dim, [&](std::int64_t at) {
          if (work.total_is_fresh) return Vec<float>{};
          return load(from + at) * broadcast(reciprocal[row]) + Vec<float>{};
        });
      }
    });
    write_lse<DecodeShape>(problem, task, work, work.total);
  }

  static SeenKeys begin_count(const AttentionProblem& problem, const AttentionTask& task,
                              TileCounts& counts, void* memory) {
    lay_out_decode(problem, memory);
    const SeenKeys seen = locate(problem, task, *static_cast<DecodeWorkspace*>(memory));
    counts.all += (problem.kv_len + kDecodeStep - 1) / kDecodeStep;
    counts.chunks += chunks_of<DecodeShape>(seen);
    return seen;
  }

  // Counts as in ../attention/count.hpp. Slopes are treated as masks because they hide keys if a
  // score below all others overflows.
  static std::int64_t count_steps(const AttentionProblem& problem, const AttentionTask& task,
                                  KeyInterval keys, TileCounts& counts, void* memory) {
    DecodeWorkspace& work = *static_cast<DecodeWorkspace*>(memory);
    const bool reads_masks =
        task.mask || task.bias || task.alibi_slopes || task.distance_bias || work.mask_runs;
    return count_blocks<DecodeShape>(
        problem, &work, 1, reads_masks, keys,
        [&](const DecodeWorkspace&, std::int64_t together) {
          counts.visible += together / kDecodeStep;
          counts.scores += together * work.rows;
        },
        [&](const DecodeWorkspace&, std::int64_t key) {
          const bool is_gathered = count_gathered<DecodeShape>(problem, work, key, counts);
          for_steps(see_block(problem, task, key, 0, work), [&](std::int64_t step) {
            const std::int64_t left = task.kv_len - key - step;
            ++(work.has_bias ? counts.biased : counts.visible);
            if (is_gathered) return;
            counts.scores += work.rows * (left < kDecodeStep ? left : kDecodeStep);
          });
        });
  }

 private:
  // Copied rows are read in order, so the processor prefetches them, but not across pages.
  static void look_ahead(const AttentionProblem& problem, const AttentionTask& task,
                         std::int64_t key, const DecodeWorkspace& work, Ahead& ahead) {
    const KeyInterval seen = seen_of_block(work.seen, key, kDecodeBlock);
    const std::int64_t first = key + seen.begin;
    const std::int64_t count =
        (key + seen.end < task.kv_len ? key + seen.end : task.kv_len) - first;
    if (count <= 0) return;
    const bool has_pages = problem.page_rows != 0;
    if (has_pages || !copies_keys(problem))
      ahead.add(keys_of(problem, task), first, count, problem.head_dim);
    if (has_pages || !copies_values(problem))
      ahead.add(values_of(problem, task), first, count, problem.value_dim);
  }

  // Returns the keys that some row sees by position, extended to begin at whole blocks.
  static SeenKeys locate(const AttentionProblem& problem, const AttentionTask& task,
                         DecodeWorkspace& work) {
    work.first_row = task.row_begin;
    work.rows = static_cast<int>(task.row_end - task.row_begin);
    work.vectors = (work.rows + kWidth - 1) / kWidth;
    locate_strip(problem, task, work);
    return from_whole_blocks<DecodeShape>(work.seen);
  }

  static void merge_decode_chunk(DecodeWorkspace& work) {
    merge_part(work, work);
    start_state(work.state, kDecodeLanes);
    work.is_fresh = true;
  }

  // Merges the part's chunk with the chunks that `work` has merged before.
  static void merge_part(const DecodeWorkspace& part, DecodeWorkspace& work) {
    Shares<float> shares[kDecodeLanes / kWidth];
    for (int v = 0; v < kDecodeLanes / kWidth; ++v)
      shares[v] = merge_lanes(work.total, part.state, v * kWidth);
    for (int row = 0; row < work.rows; ++row) {
      const Vec<float> of_total = broadcast(shares[row / kWidth].total[row % kWidth]);
      const Vec<float> of_part = broadcast(shares[row / kWidth].part[row % kWidth]);
      const float* from = part.output + row * work.padded_value_dim;
      float* to = work.total_output + row * work.padded_value_dim;
      for (std::int64_t i = 0; i < work.padded_value_dim; i += kWidth) {
        const Vec<float> added = load(from + i) * of_part;
        store(to + i, work.total_is_fresh ? added : load<float>(to + i) * of_total + added);
      }
    }
    work.total_is_fresh = false;
  }
};

}  // namespace
}  // namespace regard
