// output = softmax(scores) value, for the rows of one task.
//
//   for a block of keys at an absolute position       keys and values stream through L2
//     for a strip of queries                          queries and output of all strips stay in L2
//       for a tile of keys that the strip sees        scores in registers -> weights in L1
//       output^T += values^T weights^T                a tile of value dimensions in registers
//
// Queries stay in SIMD lanes throughout, so nothing is ever reduced across lanes. Only the queries are
// packed; keys and values are read where they lie, unless their strides forbid it.
//
// A row's bits depend on its query, its keys and the target alone: tiles and blocks begin at multiples of
// their size whatever the interval, every sum runs over keys in order, first within a block and then over
// blocks, and what other lanes do never changes an operation on this one.
//
// The dispatch calls `begin`, then `advance` over consecutive intervals of whole blocks, so that it
// can stop a long task, then `finish`, and `write_weights` where the caller wants them.
#pragma once

#include "../ahead.hpp"
#include "count.hpp"
#include "key_block.hpp"
#include "mask_tiles.hpp"
#include "online_softmax.hpp"
#include "plain_scores.hpp"
#include "strip_output.hpp"
#include "strip_setup.hpp"
#include "table.hpp"

namespace regard {
namespace {

// `Scores` forms a tile's scores: plain_scores.hpp or ../int8/scores.hpp.
template <class Shape, class Scores = PlainScores<Shape>>
struct AttentionForward {
  using T = typename Shape::Element;
  using Output = StripOutput<Shape>;
  using Run = typename Output::Run;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kBlockTiles = Shape::kBlockKeys / kRows;

  static constexpr AttentionKernel kernel() {
    return {
        .workspace_bytes = workspace_bytes,
        .begin = begin,
        .advance = advance,
        .finish = Output::finish,
        .copies_keys = Scores::copies_keys,
        .copies_values = copies_values<T, kRows>,
        .columns = kRows,
        .begin_count = begin_count<Shape>,
        .count = count_tiles<Shape>,
        .tile_rows = Shape::kStripLanes,
        .tile_keys = kRows,
    };
  }

  static std::int64_t workspace_bytes(const AttentionProblem& problem, std::int64_t task_rows) {
    return lay_out<Shape>(problem, task_rows, nullptr);
  }

  static std::int64_t task_rows(const AttentionProblem& problem) {
    const std::int64_t bytes_of_row =
        (problem.head_dim + problem.value_dim) * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t unit = row_unit<Shape>(problem);
    const std::int64_t units = (Shape::kTaskBytes / bytes_of_row + unit / 2) / unit;
    const std::int64_t most_units = Shape::kMostTaskRows / unit;
    return clamp(units, 1, most_units > 1 ? most_units : 1) * unit;
  }

  // Packs the queries. Returns the keys that some row sees by position, from whole blocks on.
  static SeenKeys begin(const AttentionProblem& problem, const AttentionTask& task, void* memory) {
    const SeenKeys keys = locate_strips<Shape>(problem, task, memory);
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      Strip<T>& strip = work.strips[s];
      Scores::pack_queries(problem, task, strip);
      const int lanes = strip.vectors * kLanes<T>;
      start_state(strip.state, lanes);
      strip.is_fresh = true;
      strip.asked_rows = 0;
      if (!merges_chunks<Shape>(problem)) continue;
      start_state(strip.total, lanes);
      strip.total_is_fresh = true;
      if (problem.sinks) start_with_sinks(problem, task, strip.first_row, strip.total, lanes);
    }
    return keys;
  }

  // Adds the keys of [key_begin, key_end); key_begin is a multiple of kBlockKeys.
  static void advance(const AttentionProblem& problem, const AttentionTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    for (std::int64_t key = key_begin; key < key_end; key += Shape::kBlockKeys) {
      KeyBlock<T> block = block_at<T>(task, key, Shape::kBlockKeys);
      Ahead ahead;
      const bool asks = add_next_block(problem, task, key + Shape::kBlockKeys, key_end, ahead);
      for (int s = 0; s < work.strip_count; ++s) {
        Strip<T>& strip = work.strips[s];
        if (key % Shape::kChunkKeys == 0 && !strip.is_fresh)
          merge_chunk(strip, round_up(problem.value_dim, kRows));
        if (!overlaps(strip.seen, key, key + Shape::kBlockKeys)) continue;
        const bool is_last = s + 1 == work.strip_count;
        const Next next{asks ? &ahead : nullptr, &work.strips[is_last ? 0 : s + 1],
                        is_last ? key + Shape::kBlockKeys : key};
        for_vectors<Shape::kVectors>(strip.vectors, [&](auto vectors) {
          block_of_strip<vectors.value>(problem, task, strip, next, work, block);
        });
      }
    }
  }

  // Computes the scores again, now relative to the final references, and writes their weights for
  // the keys of [key_begin, key_end) of the problem, hidden and absent ones as 0.
  static void write_weights(const AttentionProblem& problem, const AttentionTask& task,
                            std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const Workspace<T>& work = *static_cast<const Workspace<T>*>(memory);
    for (std::int64_t key = key_begin; key < key_end; key += Shape::kBlockKeys) {
      KeyBlock<T> block = block_at<T>(task, key, Shape::kBlockKeys);
      const std::int64_t left = problem.kv_len - key;
      const std::int64_t columns = left < Shape::kBlockKeys ? left : Shape::kBlockKeys;
      for (int s = 0; s < work.strip_count; ++s) {
        const Strip<T>& strip = work.strips[s];
        for_vectors<Shape::kVectors>(strip.vectors, [&](auto vectors) {
          final_weights<vectors.value>(problem, task, strip, work, block, columns);
        });
        with_result_element<T>(problem.weights.element, [&](auto element) {
          using To = typename decltype(element)::Type;
          To* rows[Shape::kStripLanes];
          row_pointers(problem, problem.weights, task.weights, strip, key, rows);
          lanes_to_rows(work.weights, strip.vectors * kLanes<T>, columns, rows, strip.rows,
                        problem.weights.column_stride, [](Vec<T> value, int) { return value; });
        });
      }
    }
  }

 private:
  // What is read next, and prefetched, a share at every tile.
  struct Next {
    Ahead* rows;            // of the next block; null where the processor's own prefetching is enough
    const Strip<T>* strip;  // whose mask is read next,
    std::int64_t key;       // and of which block
  };

  // Adds the keys and values of the block at `key`. In a window, so few rows see a key that they would wait for it.
  static bool add_next_block(const AttentionProblem& problem, const AttentionTask& task, std::int64_t key,
                             std::int64_t key_end, Ahead& ahead) {
    const std::int64_t left = (key_end < task.kv_len ? key_end : task.kv_len) - key;
    const std::int64_t count = left < Shape::kBlockKeys ? left : Shape::kBlockKeys;
    if (count <= 0 || problem.window_left == kUnbounded || problem.window_right == kUnbounded) return false;
    if (problem.key.column_stride == 1 && !task.int8_keys)
      ahead.add(keys_of(problem, task), key, count, problem.head_dim);
    if (problem.value.column_stride == 1) ahead.add(values_of(problem, task), key, count, problem.value_dim);
    return true;
  }

  // Nothing is hidden from the strip and nothing added to its scores.
  static bool sees_all_of(const AttentionTask& task, const Strip<T>& strip,
                          const KeyBlock<T>& block) {
    return !task.mask && !task.bias && !strip.slopes &&
           holds(strip.shared, block.begin, block.begin + round_up(block.count, kRows));
  }

  // Both products of one strip and one block.
  template <int kVectors>
  REGARD_NOINLINE void block_of_strip(const AttentionProblem& problem, const AttentionTask& task,
                                      Strip<T>& strip, const Next& next,
                                      const Workspace<T>& work, KeyBlock<T>& block) {
    const std::int64_t padded_value_dim = round_up(problem.value_dim, kRows);
    Gathered<T> gathered{work.weights, 0, strip.is_fresh ? 0 : padded_value_dim};
    if (sees_all_of(task, strip, block)) {
      Scores::provide_keys(problem, task, work, block);
      start_block_sum<kVectors>(strip);
      for (; gathered.keys < block.count; gathered.keys += kRows) {
        if (next.rows) next.rows->ask_lines(kAheadOfTile<Shape>);
        prefetch_output<Shape>(problem, task, strip);
        weights_tile<T, kRows, kVectors, Bias::none>(
            Scores::whole_tile(problem, task, strip, block, gathered.keys), nullptr, work.softcap,
            strip, gathered);
      }
      end_block_sum<kVectors>(strip);
      provide_values<T, kRows>(problem, task, work, block);
      const Run all{0, block.count, {0, kVectors}};
      if (block.value_scales)
        Output::template scale_weights<kVectors>(block.value_scales, &all, 1, gathered.weights);
      if (problem.dropout_factor != 0)
        Output::template drop_weights<kVectors>(problem, task, strip, block.begin, &all, 1, gathered.weights);
      Output::template add_values<kVectors, false>(strip, block, &all, 1, gathered.weights, padded_value_dim);
      return;
    }

    TileKind kinds[kBlockTiles];
    if (!classify_tiles<Shape>(problem, task, strip, block.begin, block.count, work.bias, kinds))
      return;
    Scores::provide_keys(problem, task, work, block);
    start_block_sum<kVectors>(strip);
    // Beyond what the strip sees by position a tile's weights are those of hidden keys.
    const int count = static_cast<int>(seen_of_block(strip.seen, block.begin, block.count).end);
    Run runs[kBlockTiles]{};
    int run_count = 0;
    bool hides_something = false;
    for (int k = 0; k < count; k += kRows) {
      const TileKind kind = kinds[k / kRows];
      prefetch_mask(problem, problem.mask, task.mask, *next.strip, next.key, Shape::kBlockKeys, k / kRows,
                    kBlockTiles);
      prefetch_mask(problem, problem.bias, task.bias, *next.strip, next.key, Shape::kBlockKeys, k / kRows,
                    kBlockTiles);
      if (kind == TileKind::hidden) continue;
      if (next.rows) next.rows->ask_lines(kAheadOfTile<Shape>);
      prefetch_output<Shape>(problem, task, strip);
      const int end = k + kRows < count ? k + kRows : count;
      VectorRange seeing{0, kVectors};
      if (kind == TileKind::hiding) seeing = vectors_that_see(strip, block.begin + k, block.begin + end);
      if (run_count > 0 && continues(runs[run_count - 1], k, seeing))
        runs[run_count - 1].end = end;
      else
        runs[run_count++] = {k, end, seeing};
      hides_something |= kind == TileKind::hiding;
      tile_of_kind<kVectors>(kind, seeing, problem, task, strip, work, block, k, gathered);
      gathered.keys += kRows;
    }
    end_block_sum<kVectors>(strip);

    provide_values<T, kRows>(problem, task, work, block);
    if (block.value_scales)
      Output::template scale_weights<kVectors>(block.value_scales, runs, run_count, gathered.weights);
    if (problem.dropout_factor != 0)
      Output::template drop_weights<kVectors>(problem, task, strip, block.begin, runs, run_count,
                                              gathered.weights);
    // A hidden key's weight of -0.0 times a finite value changes no sum; times NaN or inf it would.
    if (hides_something && !all_values_are_finite(block, problem.value_dim))
      Output::template add_values<kVectors, true>(strip, block, runs, run_count, gathered.weights, padded_value_dim);
    else
      Output::template add_values<kVectors, false>(strip, block, runs, run_count, gathered.weights, padded_value_dim);
  }

  // Whether the tile of key `k` can be added to a run.
  static bool continues(const Run& run, int k, const VectorRange& seeing) {
    return run.end == k && run.vectors.begin == seeing.begin && run.vectors.end == seeing.end;
  }

  // Not inlined into the loop over tiles that see everything, so that the compiler keeps that one lean.
  template <int kVectors>
  REGARD_NOINLINE void tile_of_kind(TileKind kind, const VectorRange& seeing, const AttentionProblem& problem,
                                    const AttentionTask& task, const Strip<T>& strip,
                                    const Workspace<T>& work, const KeyBlock<T>& block, int k,
                                    const Gathered<T>& gathered) {
    const T* bias = work.bias + k * kVectors * kLanes<T>;
    const auto product = Scores::tile(problem, task, strip, block, k);
    if (kind == TileKind::visible)
      weights_tile<T, kRows, kVectors, Bias::none>(product, bias, work.softcap, strip, gathered);
    else if (kind == TileKind::biased)
      weights_tile<T, kRows, kVectors, Bias::adds>(product, bias, work.softcap, strip, gathered);
    else
      for_range<kVectors>(seeing, [&](auto begin, auto end) {
        weights_tile<T, kRows, kVectors, Bias::hides, begin.value, end.value>(product, bias, work.softcap, strip,
                                                                              gathered);
      });
  }

  template <int kVectors>
  REGARD_INLINE void start_block_sum(const Strip<T>& strip) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      store(strip.block_sum + v * kLanes<T>, broadcast(T(-0.0)));
  }

  template <int kVectors>
  REGARD_INLINE void end_block_sum(const Strip<T>& strip) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      T* sum = strip.state.sum + v * kLanes<T>;
      store(sum, load<T>(sum) + load<T>(strip.block_sum + v * kLanes<T>));
    }
  }

  // A tile of final weights. Whether its keys are hidden or not, bias says so: one loop serves all kinds of tiles.
  template <int kVectors, class Product>
  REGARD_INLINE void final_tile(const Product& product, const T* bias, T softcap,
                                const Strip<T>& strip, T* tile) {
    Accumulators<T, kRows, kVectors> acc;
    score_tile<T, kRows, kVectors, kVectors, Bias::hides>(acc, product, bias, softcap, tile, 0);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> reference = load(strip.state.reference + v * kLanes<T>);
      const Vec<T> reciprocal = load(strip.reciprocal + v * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = (r * kVectors + v) * kLanes<T>;
        const Vec<T> weight =
            weight_of<T, Bias::hides>(acc[r][v], reference, bias, at, Exp2Bits<T>::kLowest);
        // Selected once more, since reciprocal may be NaN.
        store(tile + at, unless_hidden<T>(weight * reciprocal, load(bias + at), Vec<T>{}));
      }
    }
  }

  // The weights of one strip for `columns` keys from the block's first on, divided by the sums, in
  // work.weights.
  template <int kVectors>
  REGARD_NOINLINE void final_weights(const AttentionProblem& problem, const AttentionTask& task,
                                     const Strip<T>& strip, const Workspace<T>& work,
                                     KeyBlock<T>& block, std::int64_t columns) {
    constexpr int kWidth = kVectors * kLanes<T>;
    TileKind kinds[kBlockTiles];
    for (TileKind& kind : kinds) kind = TileKind::hidden;
    if (block.count > 0 &&
        classify_tiles<Shape>(problem, task, strip, block.begin, block.count, work.bias, kinds))
      Scores::provide_keys(problem, task, work, block);
    for (int k = 0; k < columns; k += kRows) {
      T* tile = work.weights + k * kWidth;
      T* bias = work.bias + k * kWidth;
      const TileKind kind = kinds[k / kRows];
      if (kind == TileKind::hidden || kind == TileKind::visible) {
        T* zeros = kind == TileKind::hidden ? tile : bias;
        for (int i = 0; i < kRows * kVectors; ++i) store(zeros + i * kLanes<T>, Vec<T>{});
      }
      if (kind != TileKind::hidden)
        final_tile<kVectors>(Scores::tile(problem, task, strip, block, k), bias, work.softcap, strip, tile);
    }
    const Run all{0, static_cast<int>(columns), {0, kVectors}};
    if (problem.dropout_factor != 0)
      Output::template drop_weights<kVectors>(problem, task, strip, block.begin, &all, 1, work.weights);
  }
};

}  // namespace
}  // namespace regard
