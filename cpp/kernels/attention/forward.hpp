// output = softmax(scores) value, for the rows of one task:
//
//   for a block of keys at an absolute position       keys and values stream through L2
//     for a strip of queries                          queries and output of all strips stay in L2
//       for a tile of keys that the strip sees        scores in registers -> weights in L1
//       output^T += values^T weights^T                a tile of value dimensions in registers
//
// Queries stay in SIMD lanes, so nothing is reduced across lanes. Keys and values are read in place
// unless their strides prevent it.
//
// A row's bits depend only on its query, its keys and the target: tiles and blocks begin at
// multiples of their size whatever the interval is, sums run over keys in order, first within a
// block and then over blocks, and other lanes never affect an operation on this lane.
#pragma once

#include "../ahead.hpp"
#include "../strips/dropout.hpp"
#include "count.hpp"
#include "gathered.hpp"
#include "plain_scores.hpp"
#include "../kernel_table.hpp"
#include "plain_values.hpp"

namespace regard {
namespace {

// `Scores` computes a tile's scores (plain_scores.hpp, ../int8/scores.hpp, ../bfloat16/scores.hpp),
// and `Values` adds values (plain_values.hpp, ../bfloat16/scores.hpp).
template <class Shape, class Scores = PlainScores<Shape>, class Values = PlainValues<Shape>>
struct AttentionForward {
  using T = typename Shape::Element;
  using Strip = ForwardStrip<T>;
  using Workspace = ForwardWorkspace<T>;
  using Block = ForwardBlock<T>;
  static constexpr int kRows = Shape::kRows;
  static constexpr bool kCompilesAdds = sizeof(T) == 4;

  static constexpr AttentionKernels kernels() {
    return {
        .forward = kernel(),
        .task_rows = task_rows,
        .row_unit = row_unit<Shape>,
        .block_keys = Shape::kBlockKeys,
        .chunk_keys = Shape::kChunkKeys,
    };
  }

  static constexpr AttentionKernel kernel() {
    return {
        .pass = {workspace_bytes, begin, advance, finish},
        .copies_keys = Scores::copies_keys,
        .copies_values = Values::copies_values,
        .columns = kRows,
        .begin_count = begin_count<Shape>,
        .count = count_tiles<Shape>,
        .tile_rows = Shape::kStripLanes,
        .tile_keys = kRows,
        .write_weights = write_weights,
        .merge = merge,
    };
  }

  static std::int64_t workspace_bytes(const AttentionProblem& problem, std::int64_t task_rows) {
    return lay_out_forward<Shape>(problem, task_rows, nullptr);
  }

  static std::int64_t task_rows(const AttentionProblem& problem) {
    const std::int64_t bytes_of_row =
        (problem.head_dim + problem.value_dim) * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t unit = row_unit<Shape>(problem);
    const std::int64_t units = (Shape::kTaskBytes / bytes_of_row + unit / 2) / unit;
    const std::int64_t most_units = Shape::kMostTaskRows / unit;
    return clamp(units, 1, most_units > 1 ? most_units : 1) * unit;
  }

  // Packs the queries. Returns the keys that some row sees by position, extended to begin at whole
  // blocks.
  static SeenKeys begin(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    lay_out_forward<Shape>(problem, task.row_end - task.row_begin, memory);
    const Workspace& work = *static_cast<const Workspace*>(memory);
    const SeenKeys seen = locate_strips(problem, task, work.strips, work.strip_count);
    for (int s = 0; s < work.strip_count; ++s) {
      Strip& strip = work.strips[s];
      Scores::pack_queries(problem, task, strip);
      start_online<Shape>(problem, task, strip);
      strip.asked_rows = 0;
    }
    return from_whole_blocks<Shape>(seen);
  }

  // Adds the keys of [key_begin, key_end); key_begin is a multiple of kBlockKeys.
  static void advance(const AttentionProblem& problem, const AttentionTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Workspace& work = *static_cast<const Workspace*>(memory);
    const auto add_block = [&](std::int64_t key, std::int64_t next_key) {
      Block block{span_at<Shape>(key, task.kv_len)};
      Ahead ahead;
      const bool asks = add_next_block(problem, task, next_key, key_end, ahead);
      for (int s = 0; s < work.strip_count; ++s) {
        Strip& strip = work.strips[s];
        begin_block<Shape>(strip, key);
        if (!sees_block<Shape>(strip, key)) continue;
        const bool is_last = s + 1 == work.strip_count;
        const NextMask<T> next{work.strips[is_last ? 0 : s + 1], is_last ? next_key : key};
        block_of_strip(problem, task, strip, next, asks ? &ahead : nullptr, work, key_end, block);
      }
    };
    for (int s = 0; s < work.strip_count; ++s) work.strips[s].gathered.end = 0;
    over_blocks_seen<Shape>(problem, work.strips, work.strip_count, key_begin, key_end, add_block);
  }

  static void merge(const void* part, void* memory) {
    const Workspace& from = *static_cast<const Workspace*>(part);
    const Workspace& work = *static_cast<const Workspace*>(memory);
    for (int s = 0; s < work.strip_count; ++s)
      if (!from.strips[s].is_fresh) merge_part<Shape>(from.strips[s], work.strips[s]);
  }

  // Divides by the sums and writes the output and lse.
  static void finish(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    const Workspace& work = *static_cast<const Workspace*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      Strip& strip = work.strips[s];
      merge_all<Shape>(problem, strip);
      for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>)
        store(strip.reciprocal + lane, reciprocal_of_sum<T>(load(strip.state.sum + lane)));
      // + 0 turns a product of -0.0 into 0, so that the sign of a hidden value does not show.
      unpack_rows<Shape>(problem, problem.output, task.output, strip, 0, problem.value_dim,
                         outputs_of<Shape>(strip), [&](Vec<T> value, int lane) {
                           return value * load(strip.reciprocal + lane) + Vec<T>{};
                         });
      write_lse<Shape>(problem, task, strip, strip.state);
    }
  }

  // Computes the scores again, now relative to the final references, and writes the weights of the
  // keys [key_begin, key_end) of the problem. Hidden and absent keys get a weight of 0.
  static void write_weights(const AttentionProblem& problem, const AttentionTask& task,
                            std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Workspace& work = *static_cast<const Workspace*>(memory);
    for (std::int64_t key = key_begin; key < key_end; key += Shape::kBlockKeys) {
      Block block{span_at<Shape>(key, task.kv_len)};
      const int columns = span_at<Shape>(key, problem.kv_len).count;
      for (int s = 0; s < work.strip_count; ++s) {
        const Strip& strip = work.strips[s];
        final_weights(problem, task, strip, work, block, columns);
        unpack_rows<Shape>(problem, problem.weights, task.weights, strip, key, columns,
                           work.weights, [](Vec<T> value, int) { return value; });
      }
    }
  }

 private:
  // Adds the keys and values of the block at `key` to `ahead`. This is needed in a window and with
  // a sparse mask: so few rows see each key that they would wait for it.
  static bool add_next_block(const AttentionProblem& problem, const AttentionTask& task,
                             std::int64_t key, std::int64_t key_end, Ahead& ahead) {
    const std::int64_t left = (key_end < task.kv_len ? key_end : task.kv_len) - key;
    const std::int64_t count = left < Shape::kBlockKeys ? left : Shape::kBlockKeys;
    const bool is_window = problem.window_left != kUnbounded && problem.window_right != kUnbounded;
    const bool reads_keys_briefly = task.row_end - task.row_begin <= 3 * Shape::kStripLanes;
    if (count <= 0 || !(is_window || problem.sparse_mask || reads_keys_briefly)) return false;
    if (problem.sparse_mask && problem.sparse_mask->is_scattered) return false;
    if (problem.key.column_stride == 1 && !task.int8_keys)
      ahead.add(keys_of(problem, task), key, count, problem.head_dim);
    if (problem.value.column_stride == 1 && task.value != task.key)
      ahead.add(values_of(problem, task), key, count, problem.value_dim);
    return true;
  }

  // At every tile, prefetches a few more of the output rows that the strip will finally write,
  // until all are prefetched.
  REGARD_INLINE void prefetch_output(const AttentionProblem& problem, const AttentionTask& task,
                                     Strip& strip) {
    constexpr int kMost = kRows / 4;
    const int left = strip.rows - strip.asked_rows, rows = left < kMost ? left : kMost;
    if (rows == 0) return;
    prefetch_rows<1>(problem, problem.output, task.output, strip.first_row + strip.asked_rows, rows,
                     problem.value_dim, 0, 1);
    strip.asked_rows += rows;
  }

  // Computes both products of one strip and one block. `ahead` holds the rows of the next block, or
  // is null if the processor's own prefetching is enough.
  REGARD_NOINLINE void block_of_strip(const AttentionProblem& problem, const AttentionTask& task,
                                      Strip& strip, const NextMask<T>& next, Ahead* ahead,
                                      const Workspace& work, std::int64_t key_end, Block& block) {
    const bool is_gathered = Scores::kGathers && strip.gathered.key &&
                             gather(problem, task, strip, work, block, key_end);
    const SeenTiles<Shape> tiles = see_tiles<Shape>(problem, task, strip, block, work.bias);
    if (tiles.end == 0) return;
    GatheredBlock<Shape> own;
    if (is_gathered) {
      own = gathered_block<Shape>(block.begin, tiles, strip.gathered);
      place_products<Shape>(strip, own, tiles.end, work.weights);
      block.products = work.weights;
    } else {
      Scores::provide_keys(problem, task, work, block);
    }
    KeyRuns<Shape> runs;
    start_block_sum(strip);
    over_tiles<Shape, kCompilesAdds>(
        problem, task, strip, block, tiles, next, runs, [&](const auto& tile) REGARD_INLINED {
          if (ahead) ahead->ask_lines(kAheadOfTile<Shape>);
          prefetch_output(problem, task, strip);
          weights_tile<Shape>(tile, ScoresOfBlock<T>{problem, task, strip, block.begin},
                              Scores::product(tile, problem, task, strip, block),
                              work.bias + tile.begin * Shape::kStripLanes,
                              work.weights + tile.begin * Shape::kStripLanes, strip, runs,
                              BlockWeights<T>{work.weights, nullptr});
        });
    end_block_sum(strip);
    if (is_gathered) return add_gathered(problem, task, strip, work, block, own, runs);
    Values::provide(problem, task, work, block);
    if (block.values.scales) scale_weights(block.values.scales, runs, strip.vectors, work.weights);
    if (problem.dropout_factor != 0)
      drop_weights<Shape>(problem, task, strip, block.begin, runs, work.weights);
    // A hidden key's weight of -0.0 times a finite value changes no sum; times NaN or inf it would.
    const bool selects = runs.hide_something && !all_values_are_finite(block, problem.value_dim);
    Values::add(problem, work, block, runs, selects, strip);
    strip.is_fresh = false;
  }

  // Whether the block is gathered: lists and multiplies the keys of this block and the next ones.
  REGARD_NOINLINE bool gather(const AttentionProblem& problem, const AttentionTask& task,
                              Strip& strip, const Workspace& work, Block& block,
                              std::int64_t key_end) {
    if (block.begin >= strip.gathered.end) {
      list_blocks<Shape>(problem, strip, block.begin, key_end, strip.gathered);
      if (strip.gathered.count > 0) score_gathered<Shape>(problem, task, strip, work.keys);
      block.keys = {};
    }
    return block.begin < strip.gathered.end;
  }

  // Adds the values of the block's gathered keys.
  REGARD_NOINLINE void add_gathered(const AttentionProblem& problem, const AttentionTask& task,
                                    Strip& strip, const Workspace& work, Block& block,
                                    const GatheredBlock<Shape>& own, const KeyRuns<Shape>& runs) {
    block.products = nullptr;
    const KvRows values = values_of(problem, task);
    const std::int64_t columns = round_up(problem.value_dim, kRows);
    const bool in_place = gathers_in_place<T>(values, problem.value_dim, kRows);
    bool selects = false;
    const T* rows[Shape::kBlockKeys];
    for (int i = 0; i < own.count; ++i) {
      const std::int64_t key = block.begin + own.at[i];
      rows[i] = row_of_key(values, key, in_place, i, problem.value_dim, columns, work.values);
      if (scale_products(values)) {
        KeyRuns<Shape> run;
        run.add(own.at[i], own.at[i] + 1, {0, strip.vectors});
        scale_weights(work.values.scales + i - own.at[i], run, strip.vectors, work.weights);
      }
      if (runs.hide_something && !selects)
        selects = !rows_are_finite(rows[i], 0, 1, problem.value_dim);
    }
    if (problem.dropout_factor != 0)
      drop_weights<Shape>(problem, task, strip, block.begin, runs, work.weights);
    gather_weights<Shape>(own, strip.vectors, work.weights);
    const auto add =
        selects ? add_gathered_columns<Shape, true> : add_gathered_columns<Shape, false>;
    add(rows, own.count, work.weights, columns, strip.vectors, strip.is_fresh,
        outputs_of<Shape>(strip));
    block.values = {};
    block.values_are_finite = -1;
    strip.is_fresh = false;
  }

  // weight *= the scale of its value, except for hidden keys.
  REGARD_NOINLINE void scale_weights(const T* value_scales, const KeyRuns<Shape>& runs, int vectors,
                                     T* weights) {
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
        for (int v = 0; v < vectors; ++v) {
          T* const at = weights + k * Shape::kStripLanes + v * kLanes<T>;
          store(at, scaled_weight<T>(load<T>(at), broadcast(value_scales[k])));
        }
  }

  // Computes the weights of one strip for the first `columns` keys of the block, divided by the
  // sums, in work.weights.
  REGARD_NOINLINE void final_weights(const AttentionProblem& problem, const AttentionTask& task,
                                     const Strip& strip, const Workspace& work, Block& block,
                                     int columns) {
    constexpr int kWidth = Shape::kStripLanes;
    const int padded_columns = static_cast<int>(round_up(columns, kRows));
    for (int i = 0; i < padded_columns * kWidth; i += kLanes<T>) store(work.weights + i, Vec<T>{});
    const SeenTiles<Shape> tiles = see_tiles<Shape>(problem, task, strip, block, work.bias);
    if (tiles.end == 0) return;
    Scores::provide_keys(problem, task, work, block);
    KeyRuns<Shape> runs;
    over_tiles<Shape, false>(problem, task, strip, block, tiles, NextMask<T>{strip, INT64_MAX},
                             runs, [&](const auto& tile) {
                               final_tile(tile, ScoresOfBlock<T>{problem, task, strip, block.begin},
                                          Scores::product(tile, problem, task, strip, block),
                                          work.bias + tile.begin * kWidth, strip,
                                          work.weights + tile.begin * kWidth);
                             });
    if (problem.dropout_factor != 0)
      drop_weights<Shape>(problem, task, strip, block.begin, runs, work.weights);
  }

  template <class Tile, class Product>
  REGARD_INLINE void final_tile(const Tile& tile, const ScoresOfBlock<T>& scores,
                                const Product& product, const T* bias, const Strip& strip,
                                T* weights) {
    Accumulators<T, kRows, Tile::kVectors> acc;
    score_tile<Shape>(acc, tile, scores, product, bias, weights);
    fill_unseen<Shape>(weights, tile, strip.vectors, T(0));
#pragma GCC unroll 8
    for (int v = 0; v < Tile::kVectors; ++v) {
      const int lane = tile.lane + v * kLanes<T>;
      const Vec<T> reference = load(strip.state.reference + lane),
                   reciprocal = load(strip.reciprocal + lane);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = r * Shape::kStripLanes + lane;
        Vec<T> weight =
            weight_of<T, Tile::kBias>(acc[r][v], reference, bias, at, Exp2Bits<T>::kLowest) *
            reciprocal;
        // Select again, since reciprocal may be NaN.
        if constexpr (Tile::kBias == Bias::hides)
          weight = unless_hidden<T>(weight, load(bias + at), Vec<T>{});
        store(weights + at, weight);
      }
    }
  }
};

}  // namespace
}  // namespace regard
