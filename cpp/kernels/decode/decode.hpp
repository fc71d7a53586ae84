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
// AttentionForward keeps queries in lanes; a single query would leave 15 of 16 lanes empty. Here,
// lanes hold keys (or rows), then dimensions. Every number still results from the same operations
// in the same order: a score is summed over dimensions, an output is summed over the keys of a
// block, and references move tile by tile. Both kernels return the same bits, so only speed decides
// which of them runs.
#pragma once

#include <initializer_list>

#include "../strips/seen_blocks.hpp"
#include "scores.hpp"
#include "values.hpp"
#include "decode_masks.hpp"
#include "../kernel_table.hpp"
#include "weights.hpp"

namespace regard {
namespace {

template <class Shape>
struct AttentionDecode {
  using T = typename Shape::Element;
  static_assert(Shape::kBlockKeys % kDecodeStep<Shape> == 0, "blocks are whole steps");

  static constexpr DecodeKernels kernels() {
    return {
        .kernel =
            {
                .pass = {workspace_bytes, begin, advance, finish},
                .copies_keys = copies_keys,
                .copies_values = copies_values,
                .columns = kLanes<T>,
                .begin_count = begin_count,
                .count = count_steps,
                .tile_rows = kDecodeRows,
                .tile_keys = kDecodeStep<Shape>,
                .write_weights = nullptr,
            },
        .merge = merge,
        .most_rows = kDecodeRows,
        .reads_four_bits = kDecodesOtherTypes<T>,
    };
  }

  static bool copies_keys(const AttentionProblem& problem) {
    return !decodes_keys_in_place<Shape>(problem);
  }

  static bool copies_values(const AttentionProblem& problem) {
    return !decodes_values_in_place<Shape>(problem);
  }

  static std::int64_t workspace_bytes(const AttentionProblem& problem, std::int64_t) {
    return lay_out_decode<Shape>(problem, nullptr);
  }

  static SeenKeys begin(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    lay_out_decode<Shape>(problem, memory);
    DecodeWorkspace<T>& work = *static_cast<DecodeWorkspace<T>*>(memory);
    const SeenKeys keys = locate(problem, task, work);
    pack_decode_queries<Shape>(problem, task, work);
    start_state(work.state, kDecodeLanes<T>);
    work.is_fresh = true;
    work.chunk = 0;
    start_state(work.total, kDecodeLanes<T>);
    work.total_is_fresh = true;
    if (problem.sinks) start_with_sinks(problem, task, task.row_begin, work.total, kDecodeLanes<T>);
    return keys;
  }

  // Adds the keys of [key_begin, key_end); key_begin is a multiple of kBlockKeys.
  static void advance(const AttentionProblem& problem, const AttentionTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    DecodeWorkspace<T>& work = *static_cast<DecodeWorkspace<T>*>(memory);
    const auto add_block = [&](std::int64_t key, std::int64_t next) {
      if (key / Shape::kChunkKeys != work.chunk) {
        work.chunk = key / Shape::kChunkKeys;
        if (!work.is_fresh) merge_decode_chunk(work);
      }
      const std::uint32_t steps = see_block<Shape>(problem, task, key, work);
      if (steps == 0) return;
      const DecodeBlock<Shape> block = decode_block<Shape>(problem, task, key, steps, work);
      Ahead ahead;
      if (next < key_end) look_ahead(problem, task, next, work, ahead);
      score_steps<Shape>(block, steps, work, ahead);
      ahead.ask_lines(kAheadOfWeights);
      for (int row = 0; row < work.rows; ++row)
        weigh_row<Shape>(problem, task, key, steps, row, work);
      add_decode_values<Shape>(block, steps, key, work, ahead);
    };
    over_blocks_seen<Shape>(problem, &work, 1, key_begin, key_end, add_block);
  }

  // Merges the single chunk that `part` has accumulated with the earlier chunks in `memory`.
  static void merge(const void* part, void* memory) {
    const DecodeWorkspace<T>& gathered = *static_cast<const DecodeWorkspace<T>*>(part);
    if (!gathered.is_fresh) merge_part(gathered, *static_cast<DecodeWorkspace<T>*>(memory));
  }

  // Divides by the sums and writes the output and lse.
  static void finish(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    DecodeWorkspace<T>& work = *static_cast<DecodeWorkspace<T>*>(memory);
    if (!work.is_fresh) merge_decode_chunk(work);
    const std::int64_t group = problem.heads / problem.kv_heads;
    T reciprocal[kDecodeLanes<T>];
    for (int lane = 0; lane < kDecodeLanes<T>; lane += kLanes<T>)
      store(reciprocal + lane, reciprocal_of_sum<T>(load(work.total.sum + lane)));
    for (int row = 0; row < work.rows; ++row) {
      const std::int64_t query = (task.row_begin + row) / group,
                         head = (task.row_begin + row) % group;
      with_result_element<T>(problem.output.element, [&](auto element) {
        using To = typename decltype(element)::Type;
        To* to = static_cast<To*>(task.output) + query * problem.output.row_stride +
                 head * problem.output.head_stride;
        const T* from = work.total_output + row * work.padded_value_dim;
        const std::int64_t stride = problem.output.column_stride;
        std::int64_t column = 0;
        // + 0 turns a product of -0.0 into 0, as in AttentionForward.
        const auto value_at = [&](std::int64_t at) {
          if (work.total_is_fresh) return Vec<T>{};
          return load(from + at) * broadcast(reciprocal[row]) + Vec<T>{};
        };
        if (stride == 1)
          for (; column + kLanes<T> <= problem.value_dim; column += kLanes<T>)
            store_as<T>(to + column, value_at(column));
        for (; column < problem.value_dim; column += kLanes<T>) {
          const Vec<T> value = value_at(column);
          for (int i = 0; i < kLanes<T> && column + i < problem.value_dim; ++i)
            narrow(value[i], to[(column + i) * stride]);
        }
      });
      if (!task.lse) continue;
      const double lse = log_sum_exp(work.total.reference[row], work.total.sum[row]);
      const std::int64_t at = query * problem.lse.row_stride + head * problem.lse.head_stride;
      if (problem.lse.element == Element::float64)
        static_cast<double*>(task.lse)[at] = lse;
      else
        static_cast<float*>(task.lse)[at] = static_cast<float>(lse);
    }
  }

  static SeenKeys begin_count(const AttentionProblem& problem, const AttentionTask& task,
                              TileCounts& counts, void* memory) {
    lay_out_decode<Shape>(problem, memory);
    const SeenKeys seen = locate(problem, task, *static_cast<DecodeWorkspace<T>*>(memory));
    counts.all += (problem.kv_len + kDecodeStep<Shape> - 1) / kDecodeStep<Shape>;
    for (const KeyInterval& keys : {seen.keep_first, seen.window})
      if (!is_empty(keys))
        counts.chunks += (keys.end - 1) / Shape::kChunkKeys - keys.begin / Shape::kChunkKeys + 1;
    return seen;
  }

  // Counts as in ../attention/count.hpp. Slopes are treated as masks because they hide keys if a
  // score below all others overflows.
  static std::int64_t count_steps(const AttentionProblem& problem, const AttentionTask& task,
                                  KeyInterval keys, TileCounts& counts, void* memory) {
    constexpr std::int64_t kStep = kDecodeStep<Shape>;
    DecodeWorkspace<T>& work = *static_cast<DecodeWorkspace<T>*>(memory);
    const bool reads_masks =
        task.mask || task.bias || task.alibi_slopes || task.distance_bias || work.mask_runs;
    const std::int64_t end = end_of_count<Shape>(reads_masks, keys);
    for (std::int64_t key = keys.begin; key < end;) {
      const std::int64_t whole = reads_masks ? 0 : whole_blocks_seen<Shape>(work.shared, key);
      if (whole > 0) {
        const std::int64_t together = whole * Shape::kBlockKeys;
        counts.visible += together / kStep;
        counts.scores += together * work.rows;
        key += together;
        continue;
      }
      for_steps<Shape>(see_block<Shape>(problem, task, key, work), [&](std::int64_t step) {
        const std::int64_t left = task.kv_len - key - step;
        ++(work.has_bias ? counts.biased : counts.visible);
        counts.scores += work.rows * (left < kStep ? left : kStep);
      });
      key = next_block_seen<Shape>(work.seen, key + Shape::kBlockKeys, end);
      key = next_block_by_mask<Shape>(problem, &work, 1, key, end);
    }
    return end;
  }

 private:
  // Copied rows are read in order, so the processor prefetches them, but not across pages.
  static void look_ahead(const AttentionProblem& problem, const AttentionTask& task,
                         std::int64_t key, const DecodeWorkspace<T>& work, Ahead& ahead) {
    const KeyInterval seen = seen_of_block(work.seen, key, Shape::kBlockKeys);
    const std::int64_t first = key + seen.begin, count = seen.end - seen.begin;
    const bool has_pages = problem.page_rows != 0;
    if (has_pages || !copies_keys(problem))
      ahead.add(keys_of(problem, task), first, count, problem.head_dim);
    if (has_pages || !copies_values(problem))
      ahead.add(values_of(problem, task), first, count, problem.value_dim);
  }

  // Returns the keys that some row sees by position, extended to begin at whole blocks.
  static SeenKeys locate(const AttentionProblem& problem, const AttentionTask& task,
                         DecodeWorkspace<T>& work) {
    work.first_row = task.row_begin;
    work.rows = static_cast<int>(task.row_end - task.row_begin);
    work.vectors = (work.rows + kLanes<T> - 1) / kLanes<T>;
    locate_strip(problem, task, work);
    return from_whole_blocks<Shape>(work.seen);
  }

  static void merge_decode_chunk(DecodeWorkspace<T>& work) {
    merge_part(work, work);
    start_state(work.state, kDecodeLanes<T>);
    work.is_fresh = true;
  }

  // Merges the part's chunk with the chunks that `work` has merged before.
  static void merge_part(const DecodeWorkspace<T>& part, DecodeWorkspace<T>& work) {
    Shares<T> shares[kDecodeLanes<T> / kLanes<T>];
    for (int v = 0; v < kDecodeLanes<T> / kLanes<T>; ++v)
      shares[v] = merge_lanes(work.total, part.state, v * kLanes<T>);
    for (int row = 0; row < work.rows; ++row) {
      const Vec<T> of_total = broadcast(shares[row / kLanes<T>].total[row % kLanes<T>]);
      const Vec<T> of_part = broadcast(shares[row / kLanes<T>].part[row % kLanes<T>]);
      const T* from = part.output + row * work.padded_value_dim;
      T* to = work.total_output + row * work.padded_value_dim;
      for (std::int64_t i = 0; i < work.padded_value_dim; i += kLanes<T>) {
        const Vec<T> added = load(from + i) * of_part;
        store(to + i, work.total_is_fresh ? added : load<T>(to + i) * of_total + added);
      }
    }
    work.total_is_fresh = false;
  }
};

}  // namespace
}  // namespace regard
