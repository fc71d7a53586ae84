// output = softmax(scores) value and its derivative along (tangent_query, tangent_key,
// tangent_value), for the rows of one task, in one pass over the keys:
//
//   tangent_output = (sum of P T value + P tangent_value) / sum - r output
//   r              = (sum of P T) / sum = tangent_lse
//
//   for a block of keys                 keys, values and their tangents stream through L2
//     for a strip of queries            queries, outputs and their tangents stay in L2
//       scores, weights, products       TangentGathering
#pragma once

#include "../kernel_table.hpp"
#include "../strips/dropout.hpp"
#include "../strips/lanes.hpp"
#include "../strips/products.hpp"
#include "tangent_workspace.hpp"

namespace regard {
namespace {

template <class T>
struct TangentKeys : KeySpan {
  TileRows<T> keys{};
  TileRows<T> tangent_keys{};
  TileRows<T> values{};
  TileRows<T> tangent_values{};
  bool values_are_finite = false;  // and tangent_values
};

// Adds one block of keys to a strip's running results. With T for the tangents of scores:
//
//   T = scale (tangent_query key^T + query tangent_key^T), times the cap's derivative
//   sum            += P                   output         += P value
//   tangent_sum    += P T                 tangent_output += P T value + P tangent_value
//
// where P = e^(score - reference). Dropout multiplies only the weights in the second column.
template <class Shape>
struct TangentGathering {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;

  REGARD_NOINLINE void add(const TangentProblem& problem, const TangentTask& task,
                           const TangentWorkspace<T>& work, TangentKeys<T>& block,
                           TangentStrip<T>& strip) {
    const AttentionProblem& forward = problem.forward;
    const SeenTiles<Shape> tiles = see_tiles<Shape>(forward, task.forward, strip, block, work.bias);
    if (tiles.end == 0) return;
    if (!block.keys.from) provide(problem, task, work, block);
    const bool has_tangents = task.tangent_query || task.tangent_key;
    const NextMask<T> next{strip, block.begin + Shape::kBlockKeys};
    const BlockWeights<T> weights{work.weights, has_tangents ? work.tangents : nullptr};
    KeyRuns<Shape> runs;
    start_block_sum(strip);
    over_tiles<Shape, false>(
        forward, task.forward, strip, block, tiles, next, runs,
        [&](const auto& tile) REGARD_INLINED {
          weights_tile<Shape>(tile, ScoresOfBlock<T>{forward, task.forward, strip, block.begin},
                              product_of<Shape>(tile, block.keys, strip.queries, forward.head_dim),
                              work.bias + tile.begin * Shape::kStripLanes, work.capped_scores,
                              strip, runs, weights);
          if (has_tangents) tangents_tile(tile, problem, task, work, block, strip);
        });
    end_block_sum(strip);
    T *const block_sum = tangent_block_sum<Shape>(strip), *const sum = tangent_sum<Shape>(strip);
    for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>) {
      store(sum + lane, load<T>(sum + lane) + load<T>(block_sum + lane));
      store(block_sum + lane, Vec<T>{});
    }
    if (forward.dropout_factor != 0)
      drop_weights<Shape>(forward, task.forward, strip, block.begin, runs, weights.weights,
                          weights.others);
    add_values(problem, task, work, block, runs, strip);
  }

 private:
  REGARD_NOINLINE void provide(const TangentProblem& problem, const TangentTask& task,
                               const TangentWorkspace<T>& work, TangentKeys<T>& block) {
    const AttentionProblem& forward = problem.forward;
    const std::int64_t value_dim = round_up(forward.value_dim, kRows);
    const Operand no_scales{};
    const auto rows_of = [&](const Operand& operand, const void* data, std::int64_t columns,
                             std::int64_t padded_columns, const RowCopies<T>& copies) {
      return provide_rows<T, kRows>(KvRows{operand, data, no_scales, nullptr, nullptr, 0, {}},
                                    block.begin, block.count, columns, padded_columns, copies);
    };
    const std::int64_t head_dim = forward.head_dim;
    block.keys = rows_of(forward.key, task.forward.key, head_dim, head_dim, work.keys);
    block.tangent_keys =
        rows_of(problem.tangent_key, task.tangent_key, head_dim, head_dim, work.tangent_keys);
    block.values =
        rows_of(forward.value, task.forward.value, forward.value_dim, value_dim, work.values);
    block.tangent_values = rows_of(problem.tangent_value, task.tangent_value, forward.value_dim,
                                   value_dim, work.tangent_values);
    const auto are_finite = [&](const TileRows<T>& rows) {
      return !rows.from || rows_are_finite(rows.from, rows.stride, block.count, forward.value_dim);
    };
    block.values_are_finite = are_finite(block.values) && are_finite(block.tangent_values);
  }

  // Computes work.tangents for a tile whose weights are known, and their sums.
  template <class Tile>
  REGARD_INLINE void tangents_tile(const Tile& tile, const TangentProblem& problem,
                                   const TangentTask& task, const TangentWorkspace<T>& work,
                                   const TangentKeys<T>& block, const TangentStrip<T>& strip) {
    constexpr int kWidth = Shape::kStripLanes, kVectors = Tile::kVectors;
    const std::int64_t head_dim = problem.forward.head_dim;
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    if (task.tangent_query)
      product_of<Shape>(tile, block.keys, strip.tangent_queries, head_dim)
          .template add_to<kRows, kVectors>(acc, tile.lane);
    if (task.tangent_key)
      product_of<Shape>(tile, block.tangent_keys, strip.queries, head_dim)
          .template add_to<kRows, kVectors>(acc, tile.lane);
    T* const tangents = work.tangents + tile.begin * kWidth;
    fill_unseen<Shape>(tangents, tile, strip.vectors, T(-0.0));
    store_tile<T, kRows, kVectors>(acc, tangents + tile.lane, kWidth);
    T factors[kRows * kVectors * kLanes<T>];
    if (transforms_scores<T>(strip))
      derivatives_of_scores<Shape>({problem.forward, task.forward, strip, block.begin}, tile,
                                   kVectors * kLanes<T>, work.capped_scores, factors);
    weigh_tangents<kVectors>(strip, tile.lane, factors,
                             work.weights + tile.begin * kWidth + tile.lane, tangents + tile.lane,
                             tangent_block_sum<Shape>(strip) + tile.lane);
  }

  // Converts T to P T, and computes the sums.
  template <int kSome>
  REGARD_NOINLINE void weigh_tangents(const TangentStrip<T>& strip, int lane, const T* factors,
                                      const T* weights, T* tangents, T* sums) {
    for (int v = 0; v < kSome; ++v) {
      const Vec<T> scale = load(strip.scales + lane + v * kLanes<T>);
      Vec<T> weighted[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = r * Shape::kStripLanes + v * kLanes<T>;
        Vec<T> tangent = load<T>(tangents + at) * scale;
        if (transforms_scores<T>(strip))
          tangent = tangent * load(factors + (r * kSome + v) * kLanes<T>);
        const Vec<T> weight = load(weights + at);
        const Mask<T> is_hidden = as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0)));
        weighted[r] =
            select<T>(is_hidden, weight, weight * tangent + Vec<T>{});  // -0.0 is for hidden keys
        store(tangents + at, weighted[r]);
      }
      T* const sum = sums + v * kLanes<T>;
      store(sum, load<T>(sum) + sum_rows(weighted));
    }
  }

  REGARD_NOINLINE void add_values(const TangentProblem& problem, const TangentTask& task,
                                  const TangentWorkspace<T>& work, const TangentKeys<T>& block,
                                  const KeyRuns<Shape>& runs, TangentStrip<T>& strip) {
    const std::int64_t value_dim = round_up(problem.forward.value_dim, kRows);
    const bool selects = runs.hide_something && !block.values_are_finite;
    const auto add = [&](const KeyTerm<T>* terms, int count, T* sums) {
      add_columns<Shape>(selects, runs, terms, count, value_dim, strip.vectors, strip.is_fresh,
                         sums);
    };
    KeyTerm<T> terms[2] = {{work.weights, block.values.from, block.values.stride}};
    add(terms, 1, outputs_of<Shape>(strip));
    int count = 0;
    if (task.tangent_query || task.tangent_key)
      terms[count++] = {work.tangents, block.values.from, block.values.stride};
    if (task.tangent_value)
      terms[count++] = {work.weights, block.tangent_values.from, block.tangent_values.stride};
    add(terms, count, tangent_outputs<Shape>(strip));
    strip.is_fresh = false;
  }
};

template <class Shape>
struct Tangent {
  using T = typename Shape::Element;

  static constexpr TangentKernels kernels() { return {workspace_bytes, begin, advance, finish}; }

  static std::int64_t workspace_bytes(const TangentProblem& problem, std::int64_t task_rows) {
    return lay_out_tangent<Shape>(problem, task_rows, nullptr);
  }

  static SeenKeys begin(const TangentProblem& problem, const TangentTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    lay_out_tangent<Shape>(problem, task.forward.row_end - task.forward.row_begin, memory);
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    const SeenKeys seen = locate_strips(forward, task.forward, work.strips, work.strip_count);
    for (int s = 0; s < work.strip_count; ++s) {
      TangentStrip<T>& strip = work.strips[s];
      pack_queries<Shape>(forward, forward.query, task.forward.query, strip, strip.queries);
      if (task.tangent_query)
        pack_queries<Shape>(forward, problem.tangent_query, task.tangent_query, strip,
                            strip.tangent_queries);
      start_online<Shape>(forward, task.forward, strip);
    }
    return from_whole_blocks<Shape>(seen);
  }

  static void advance(const TangentProblem& problem, const TangentTask& task,
                      std::int64_t key_begin, std::int64_t key_end, void* memory) {
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    const auto add_block = [&](std::int64_t key, std::int64_t) {
      TangentKeys<T> block{span_at<Shape>(key, task.forward.kv_len)};
      for (int s = 0; s < work.strip_count; ++s) {
        TangentStrip<T>& strip = work.strips[s];
        begin_block<Shape>(strip, key);
        if (!sees_block<Shape>(strip, key)) continue;
        TangentGathering<Shape>::add(problem, task, work, block, strip);
      }
    };
    over_blocks_seen<Shape>(problem.forward, work.strips, work.strip_count, key_begin, key_end,
                            add_block);
  }

  static void finish(const TangentProblem& problem, const TangentTask& task, void* memory) {
    const AttentionProblem& forward = problem.forward;
    const TangentWorkspace<T>& work = *static_cast<const TangentWorkspace<T>*>(memory);
    for (int s = 0; s < work.strip_count; ++s) {
      TangentStrip<T>& strip = work.strips[s];
      merge_all<Shape>(forward, strip);
      const int lanes = strip.vectors * kLanes<T>;
      T* const r = tangent_sum<Shape>(strip);
      for (int lane = 0; lane < lanes; lane += kLanes<T>) {
        const Vec<T> reciprocal = reciprocal_of_sum<T>(load(strip.state.sum + lane));
        store(r + lane, load<T>(r + lane) * reciprocal);
        for (std::int64_t d = 0; d < forward.value_dim; ++d) {
          T* const output = outputs_of<Shape>(strip) + d * Shape::kStripLanes + lane;
          T* const tangent = tangent_outputs<Shape>(strip) + d * Shape::kStripLanes + lane;
          store(output, load<T>(output) * reciprocal + Vec<T>{});
          store(tangent, load<T>(tangent) * reciprocal - load<T>(r + lane) * load<T>(output));
        }
      }
      const auto write = [&](const Operand& operand, void* data, const T* from) {
        unpack_rows<Shape>(forward, operand, data, strip, 0, forward.value_dim, from,
                           [](Vec<T> value, int) { return value; });
      };
      write(forward.output, task.forward.output, outputs_of<Shape>(strip));
      write(problem.tangent_output, task.tangent_output, tangent_outputs<Shape>(strip));
      write_lse<Shape>(forward, task.forward, strip, strip.state);
      write_numbers_of_rows<Shape>(forward, problem.tangent_lse, task.tangent_lse, strip,
                                   [&](int lane) { return r[lane]; });
    }
  }
};

}  // namespace
}  // namespace regard
