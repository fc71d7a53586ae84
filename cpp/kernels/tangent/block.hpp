// Adds one block of keys to a strip's running results. With T for the tangents of scores,
//
//   T = scale (tangent_query key^T + query tangent_key^T), times the cap's derivative
//   sum            += P                   output         += P value
//   tangent_sum    += P T                 tangent_output += P T value + P tangent_value
//
// where P = 2^(score - reference). A block's scores are all formed before its references move. Dropout multiplies the
// weights of the second column alone.
#pragma once

#include "../attention/block_rows.hpp"
#include "../attention/dropout.hpp"
#include "../attention/mask_tiles.hpp"
#include "../attention/online_softmax.hpp"
#include "../backward/products.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

template <class T>
struct TangentKeys {
  std::int64_t begin;
  int count;
  BlockRows<T> keys;
  BlockRows<T> tangent_keys;
  BlockRows<T> values;
  BlockRows<T> tangent_values;
  bool values_are_finite;  // and tangent_values
};

template <class Shape>
struct TangentBlock {
  using T = typename Shape::Element;
  using Runs = KeyRuns<Shape>;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kBlockTiles = Shape::kBlockKeys / kRows;

  template <int kVectors>
  REGARD_NOINLINE void add(const TangentProblem& problem, const TangentTask& task, const TangentWorkspace<T>& work,
                           const TangentKeys<T>& block, TangentStrip<T>& strip) {
    TileKind kinds[kBlockTiles];
    if (!classify_tiles<Shape>(problem.forward, task.forward, strip, block.begin, block.count, work.bias,
                               kinds))
      return;
    Runs runs;
    const bool has_tangents = task.tangent_query || task.tangent_key;
    const int seen = static_cast<int>(seen_of_block(strip.seen, block.begin, block.count).end);
    for_tiles(kinds, seen, [&](int k, TileKind kind) {
      add_tile_to_runs(runs, k, k + kRows < seen ? k + kRows : seen, kind == TileKind::hiding);
      switch (kind) {
        case TileKind::visible: scores<kVectors, Bias::none>(problem, task, work, block, strip, k); break;
        case TileKind::biased: scores<kVectors, Bias::adds>(problem, task, work, block, strip, k); break;
        default: scores<kVectors, Bias::hides>(problem, task, work, block, strip, k);
      }
    });
    move_references<kVectors>(runs, work, round_up(problem.forward.value_dim, kRows), strip);
    for_tiles(kinds, seen, [&](int k, TileKind kind) {
      if (kind == TileKind::hiding)
        weights<kVectors, Bias::hides>(work, strip, k, has_tangents);
      else
        weights<kVectors, Bias::none>(work, strip, k, has_tangents);
    });
    if (problem.forward.dropout_factor != 0) drop<kVectors>(problem, task, work, strip, block.begin, runs);
    if (runs.hide_something && !block.values_are_finite)
      add_values<kVectors, true>(problem, task, work, block, runs, strip);
    else
      add_values<kVectors, false>(problem, task, work, block, runs, strip);
  }

 private:
  template <class Body>
  REGARD_INLINE void for_tiles(const TileKind* kinds, int seen, Body body) {
    for (int k = 0; k < seen; k += kRows)
      if (kinds[k / kRows] != TileKind::hidden) body(k, kinds[k / kRows]);
  }

  // work.weights and work.tangents of one tile.
  template <int kVectors, Bias kBias>
  REGARD_NOINLINE void scores(const TangentProblem& problem, const TangentTask& task, const TangentWorkspace<T>& work,
                              const TangentKeys<T>& block, const TangentStrip<T>& strip, int k) {
    constexpr int kWidth = kVectors * kLanes<T>;
    const std::int64_t head_dim = problem.forward.head_dim;
    T* const scores = work.weights + k * kWidth;
    T* const tangents = work.tangents + k * kWidth;
    const T* const bias = work.bias + k * kWidth;
    const T* const keys = block.keys.from + k * block.keys.stride;
    Accumulators<T, kRows, kVectors> acc;
    if (task.tangent_query || task.tangent_key) {
      clear<T, kRows, kVectors>(acc);
      if (task.tangent_query)
        multiply_rows<T, kRows, kVectors>(acc, keys, block.keys.stride, strip.tangent_queries, kWidth, head_dim);
      if (task.tangent_key)
        multiply_rows<T, kRows, kVectors>(acc, block.tangent_keys.from + k * block.tangent_keys.stride,
                                          block.tangent_keys.stride, strip.queries, kWidth, head_dim);
      // From the units of the product to natural ones.
      const double softcap = softcap_of<T>(problem.forward);
      const Vec<T> unit = broadcast(static_cast<T>(softcap != 0 ? softcap / (2 * kLog2E) : 1 / kLog2E));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) store(tangents + (r * kVectors + v) * kLanes<T>, acc[r][v] * unit);
    }
    clear<T, kRows, kVectors>(acc);
    multiply_rows<T, kRows, kVectors>(acc, keys, block.keys.stride, strip.queries, kWidth, head_dim);
    if (__builtin_expect(work.softcap != T(0), false)) {
      store_tile<T, kRows, kVectors>(acc, scores);
      cap_scores<T, kRows * kVectors>(work.softcap, scores);
      if (task.tangent_query || task.tangent_key)
        apply_cap_to_tangents<kRows * kVectors>(work.softcap, scores, tangents);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = load<T>(scores + (r * kVectors + v) * kLanes<T>);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int at = (r * kVectors + v) * kLanes<T>;
        Vec<T> score = acc[r][v];
        if constexpr (kBias != Bias::none) score = with_added<T, kBias>(score, load(bias + at));
        store(scores + at, score);
      }
  }

  // T *= 1 - tanh^2.
  template <int kCount>
  REGARD_NOINLINE void apply_cap_to_tangents(T softcap, const T* scores, T* tangents) {
    for (int i = 0; i < kCount * kLanes<T>; i += kLanes<T>) {
      const Vec<T> tanh = load(scores + i) / broadcast(softcap), one = broadcast(T(1));
      store(tangents + i, load<T>(tangents + i) * ((one - tanh) * (one + tanh)));
    }
  }

  template <int kVectors>
  REGARD_NOINLINE void move_references(const Runs& runs, const TangentWorkspace<T>& work, std::int64_t value_dim,
                                       TangentStrip<T>& strip) {
    constexpr int kWidth = kVectors * kLanes<T>;
    for (int lane = 0; lane < kWidth; lane += kLanes<T>) {
      Vec<T> top = broadcast(-kInfinity<T>);
      for (int i = 0; i < runs.count; ++i)
        for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
          top = maximum<T>(top, load(work.weights + k * kWidth + lane));
      const Vec<T> limit = load(strip.state.limit + lane);
      if (!any_greater(top, limit)) continue;
      const MovedReference<T> moved = move_reference<T>(top, load(strip.state.reference + lane), limit);
      store(strip.state.reference + lane, moved.reference);
      store(strip.state.limit + lane, moved.limit);
      if (!any<T>(moved.rescales)) continue;
      const auto rescale = [&](T* at) { store(at, load<T>(at) * moved.factor); };
      rescale(strip.state.sum + lane);
      rescale(strip.tangent_sum + lane);
      if (strip.is_fresh) continue;
      for (std::int64_t d = 0; d < value_dim; ++d) {
        rescale(strip.output + d * kWidth + lane);
        rescale(strip.tangent_output + d * kWidth + lane);
      }
    }
  }

  // Scores to weights, and the sums.
  template <int kVectors, Bias kBias>
  REGARD_NOINLINE void weights(const TangentWorkspace<T>& work, TangentStrip<T>& strip, int k, bool has_tangents) {
    constexpr int kWidth = kVectors * kLanes<T>;
    T* const tile = work.weights + k * kWidth;
    T* const tangents = work.tangents + k * kWidth;
    const T* const bias = work.bias + k * kWidth;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> reference = load(strip.state.reference + v * kLanes<T>);
      Vec<T> sums[kRows], tangent_sums[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = (r * kVectors + v) * kLanes<T>;
        const Vec<T> weight = sums[r] = weight_of<T, kBias>(load<T>(tile + at), reference, bias, at);
        store(tile + at, weight);
        if (!has_tangents) continue;
        Vec<T> tangent = weight * load<T>(tangents + at) + Vec<T>{};  // -0.0 is for hidden keys
        if constexpr (kBias == Bias::hides)
          tangent = unless_hidden<T>(tangent, load(bias + at), broadcast(T(-0.0)));
        store(tangents + at, tangent);
        tangent_sums[r] = tangent;
      }
      T* const sum = strip.state.sum + v * kLanes<T>;
      store(sum, load<T>(sum) + sum_rows(sums));
      if (!has_tangents) continue;
      T* const tangent_sum = strip.tangent_sum + v * kLanes<T>;
      store(tangent_sum, load<T>(tangent_sum) + sum_rows(tangent_sums));
    }
  }

  template <int kVectors>
  REGARD_NOINLINE void drop(const TangentProblem& problem, const TangentTask& task, const TangentWorkspace<T>& work,
                            const TangentStrip<T>& strip, std::int64_t key, const Runs& runs) {
    constexpr int kWidth = kVectors * kLanes<T>;
    DropoutRows<Shape> rows;
    find_dropout_rows(problem.forward, task.forward, strip, rows);
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; k += kKeysOfCounter)
        for (int lane = 0; lane < kWidth; lane += kLanes<T>)
          dropout_factors<Shape>(problem.forward, task.forward, rows, key + k, lane, [&](int r, Vec<T> factor) {
            const auto drop_at = [&](T* at) { store(at, dropped_weight<T>(load<T>(at), factor)); };
            drop_at(work.weights + (k + r) * kWidth + lane);
            if (task.tangent_query || task.tangent_key) drop_at(work.tangents + (k + r) * kWidth + lane);
          });
  }

  template <int kVectors, bool kSelect>
  REGARD_NOINLINE void add_values(const TangentProblem& problem, const TangentTask& task,
                                  const TangentWorkspace<T>& work, const TangentKeys<T>& block, const Runs& runs,
                                  TangentStrip<T>& strip) {
    constexpr int kWidth = kVectors * kLanes<T>;
    for (std::int64_t d = 0; d < round_up(problem.forward.value_dim, kRows); d += kRows) {
      Accumulators<T, kRows, kVectors> acc;
      const auto multiply = [&](const BlockRows<T>& rows, const T* weights) {
        for (int i = 0; i < runs.count; ++i) {
          const KeyRun& run = runs.run[i];
          multiply_columns<T, kRows, kVectors, kSelect>(acc, rows.from + run.begin * rows.stride + d, rows.stride,
                                                        weights + run.begin * kWidth, kWidth, run.end - run.begin);
        }
      };
      const auto add_to = [&](T* output) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) {
            T* const to = output + (d + r) * kWidth + v * kLanes<T>;
            store(to, strip.is_fresh ? acc[r][v] : load<T>(to) + acc[r][v]);
          }
      };
      clear<T, kRows, kVectors>(acc);
      multiply(block.values, work.weights);
      add_to(strip.output);
      clear<T, kRows, kVectors>(acc);
      if (task.tangent_query || task.tangent_key) multiply(block.values, work.tangents);
      if (task.tangent_value) multiply(block.tangent_values, work.weights);
      add_to(strip.tangent_output);
    }
    strip.is_fresh = false;
  }
};

}  // namespace
}  // namespace regard
