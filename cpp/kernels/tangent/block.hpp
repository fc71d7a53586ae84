// Adds one block of keys to a strip's running results. With T for the tangents of scores,
//
//   T = scale (tangent_query key^T + query tangent_key^T), times the cap's derivative
//   sum            += P                   output         += P value
//   tangent_sum    += P T                 tangent_output += P T value + P tangent_value
//
// where P = 2^(score - reference). A block's scores are all formed before its references move. Dropout multiplies the
// weights of the second column alone.
#pragma once

#include "../attention/block_products.hpp"
#include "../attention/dropout.hpp"
#include "../attention/mask_tiles.hpp"
#include "../attention/online_softmax.hpp"
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

  REGARD_NOINLINE void add(const TangentProblem& problem, const TangentTask& task, const TangentWorkspace<T>& work,
                           const TangentKeys<T>& block, TangentStrip<T>& strip) {
    TileKind kinds[kBlockTiles];
    if (!classify_tiles<Shape>(problem.forward, task.forward, strip, block.begin, block.count, work.bias,
                               kinds))
      return;
    const bool has_tangents = task.tangent_query || task.tangent_key;
    const int seen = static_cast<int>(seen_of_block(strip.seen, block.begin, block.count).end);
    const Runs runs = runs_of<Shape>(kinds, seen);
    scores(problem, task, work, block, runs, strip);
    for_tiles<Shape>(kinds, seen, [&](int k, int, TileKind kind) {
      if (kind == TileKind::hiding)
        add_bias<Bias::hides>(work, strip, k);
      else if (kind == TileKind::biased)
        add_bias<Bias::adds>(work, strip, k);
    });
    move_references(runs, work, round_up(problem.forward.value_dim, kRows), strip);
    for_tiles<Shape>(kinds, seen, [&](int k, int, TileKind kind) {
      if (kind == TileKind::hiding)
        weights<Bias::hides>(work, strip, k, has_tangents);
      else
        weights<Bias::none>(work, strip, k, has_tangents);
    });
    if (problem.forward.dropout_factor != 0) drop(problem, task, work, strip, block.begin, runs);
    add_values(problem, task, work, block, runs, strip);
  }

 private:
  // work.weights and work.tangents of the runs, without bias.
  REGARD_NOINLINE void scores(const TangentProblem& problem, const TangentTask& task, const TangentWorkspace<T>& work,
                              const TangentKeys<T>& block, const Runs& runs, const TangentStrip<T>& strip) {
    const auto multiply = [&](const BlockRows<T>& rows, const T* lanes, bool goes_on, T* to) {
      multiply_keys<Shape>(strip.vectors, runs, rows, lanes, problem.forward.head_dim, goes_on, to);
    };
    const bool has_tangents = task.tangent_query || task.tangent_key;
    if (task.tangent_query) multiply(block.keys, strip.tangent_queries, false, work.tangents);
    if (task.tangent_key) multiply(block.tangent_keys, strip.queries, task.tangent_query != nullptr, work.tangents);
    multiply(block.keys, strip.queries, false, work.weights);
    // From the units of the product to natural ones.
    const double softcap = softcap_of<T>(problem.forward);
    const Vec<T> unit = broadcast(static_cast<T>(softcap != 0 ? softcap / (2 * kLog2E) : 1 / kLog2E));
    for (int i = 0; i < runs.count; ++i) {
      const int begin = runs.run[i].begin * strip.vectors * kLanes<T>;
      const int count = static_cast<int>(round_up(runs.run[i].end - runs.run[i].begin, kRows)) * strip.vectors;
      T* const scores = work.weights + begin;
      T* const tangents = work.tangents + begin;
      for (int at = 0; has_tangents && at < count * kLanes<T>; at += kLanes<T>)
        store(tangents + at, load<T>(tangents + at) * unit);
      if (work.softcap == T(0)) continue;
      cap_scores(work.softcap, scores, count);
      if (has_tangents) apply_cap_to_tangents(work.softcap, scores, tangents, count);
    }
  }

  template <Bias kBias>
  REGARD_NOINLINE void add_bias(const TangentWorkspace<T>& work, const TangentStrip<T>& strip, int k) {
    const int at = k * strip.vectors * kLanes<T>, end = at + kRows * strip.vectors * kLanes<T>;
    for (int i = at; i < end; i += kLanes<T>)
      store(work.weights + i, with_added<T, kBias>(load<T>(work.weights + i), load<T>(work.bias + i)));
  }

  // T *= 1 - tanh^2.
  REGARD_NOINLINE void apply_cap_to_tangents(T softcap, const T* scores, T* tangents, int vectors_in_all) {
    for (int i = 0; i < vectors_in_all * kLanes<T>; i += kLanes<T>) {
      const Vec<T> tanh = load(scores + i) / broadcast(softcap), one = broadcast(T(1));
      store(tangents + i, load<T>(tangents + i) * ((one - tanh) * (one + tanh)));
    }
  }

  REGARD_NOINLINE void move_references(const Runs& runs, const TangentWorkspace<T>& work, std::int64_t value_dim,
                                       TangentStrip<T>& strip) {
    const int width = strip.vectors * kLanes<T>;
    for (int lane = 0; lane < width; lane += kLanes<T>) {
      Vec<T> top = broadcast(-kInfinity<T>);
      for (int i = 0; i < runs.count; ++i)
        for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
          top = maximum<T>(top, load(work.weights + k * width + lane));
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
        rescale(strip.output + d * width + lane);
        rescale(strip.tangent_output + d * width + lane);
      }
    }
  }

  // Scores to weights, and their sums.
  template <Bias kBias>
  REGARD_NOINLINE void weights(const TangentWorkspace<T>& work, TangentStrip<T>& strip, int k, bool has_tangents) {
    const int width = strip.vectors * kLanes<T>;
    T* const tile = work.weights + k * width;
    const T* const bias = work.bias + k * width;
    for (int lane = 0; lane < width; lane += kLanes<T>) {
      const Vec<T> reference = load(strip.state.reference + lane);
      Vec<T> sums[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = r * width + lane;
        sums[r] = weight_of<T, kBias>(load<T>(tile + at), reference, bias, at);
        store(tile + at, sums[r]);
      }
      T* const sum = strip.state.sum + lane;
      store(sum, load<T>(sum) + sum_rows(sums));
    }
    if (has_tangents) weighted_tangents<kBias>(work, strip, k);
  }

  // T to P T, and their sums: not in the loop above, which has no registers left for a second sum.
  template <Bias kBias>
  REGARD_NOINLINE void weighted_tangents(const TangentWorkspace<T>& work, TangentStrip<T>& strip, int k) {
    const int width = strip.vectors * kLanes<T>;
    const T* const tile = work.weights + k * width;
    T* const tangents = work.tangents + k * width;
    const T* const bias = work.bias + k * width;
    for (int lane = 0; lane < width; lane += kLanes<T>) {
      Vec<T> sums[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = r * width + lane;
        Vec<T> tangent = load<T>(tile + at) * load<T>(tangents + at) + Vec<T>{};  // -0.0 is for hidden keys
        if constexpr (kBias == Bias::hides)
          tangent = unless_hidden<T>(tangent, load(bias + at), broadcast(T(-0.0)));
        store(tangents + at, tangent);
        sums[r] = tangent;
      }
      T* const tangent_sum = strip.tangent_sum + lane;
      store(tangent_sum, load<T>(tangent_sum) + sum_rows(sums));
    }
  }

  REGARD_NOINLINE void drop(const TangentProblem& problem, const TangentTask& task, const TangentWorkspace<T>& work,
                            const TangentStrip<T>& strip, std::int64_t key, const Runs& runs) {
    const int width = strip.vectors * kLanes<T>;
    DropoutRows<Shape> rows;
    find_dropout_rows(problem.forward, task.forward, strip, rows);
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; k += kKeysOfCounter)
        for (int lane = 0; lane < width; lane += kLanes<T>)
          dropout_factors<Shape>(problem.forward, task.forward, rows, key + k, lane, [&](int r, Vec<T> factor) {
            const auto drop_at = [&](T* at) { store(at, dropped_weight<T>(load<T>(at), factor)); };
            drop_at(work.weights + (k + r) * width + lane);
            if (task.tangent_query || task.tangent_key) drop_at(work.tangents + (k + r) * width + lane);
          });
  }

  REGARD_NOINLINE void add_values(const TangentProblem& problem, const TangentTask& task,
                                  const TangentWorkspace<T>& work, const TangentKeys<T>& block, const Runs& runs,
                                  TangentStrip<T>& strip) {
    const std::int64_t value_dim = round_up(problem.forward.value_dim, kRows);
    const bool selects = runs.hide_something && !block.values_are_finite;
    const auto add = [&](const KeyTerm<T>* terms, int count, T* sums) {
      add_columns<Shape>(strip.vectors, selects, runs, terms, count, value_dim, strip.is_fresh, sums);
    };
    KeyTerm<T> terms[2] = {{work.weights, block.values}};
    add(terms, 1, strip.output);
    int count = 0;
    if (task.tangent_query || task.tangent_key) terms[count++] = {work.tangents, block.values};
    if (task.tangent_value) terms[count++] = {work.weights, block.tangent_values};
    add(terms, count, strip.tangent_output);
    strip.is_fresh = false;
  }
};

}  // namespace
}  // namespace regard
