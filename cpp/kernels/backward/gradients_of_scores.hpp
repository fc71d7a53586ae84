// The weights of a strip and a block of keys, and the gradients of its scores:
//
//   P = e^(score - lse)    dP = grad_output value^T    dS = P (dP - D)
//
// Dropout Z applies to both P, as the values see it, and dP. Hidden keys have P = dS = -0.0,
// whatever they contain.
#pragma once

#include "../strips/dropout.hpp"
#include "../strips/scores.hpp"
#include "backward_workspace.hpp"

namespace regard {
namespace {

template <class Shape, class Factors>
struct GradientsOfScores {
  using T = typename Shape::Element;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kPitch = Shape::kStripLanes;  // between consecutive keys of a block
  static constexpr int kBlock = Shape::kBlockKeys * kPitch;

  // Fills the strip's part of work.weights and work.grad_scores for the tiles in `runs`. Skips
  // work.grad_scores if only the gradients of values are wanted.
  REGARD_NOINLINE void compute(const BackwardProblem& problem, const BackwardTask& task,
                               const BackwardWorkspace<Shape>& work, int number,
                               const KeySpan& block, bool wants_scores, KeyRuns<Shape>& runs) {
    const AttentionProblem& forward = problem.forward;
    const BackwardStrip<T>& strip = work.strips[number];
    const SeenTiles<Shape> tiles = see_tiles<Shape>(forward, task.forward, strip, block, work.bias);
    if (tiles.end == 0) return;
    DropoutRows<Shape> dropout;
    const bool drops = forward.dropout_factor != 0;
    if (drops) find_dropout_rows(forward, task.forward, strip, dropout);
    const std::int64_t first = block.begin - work.piece.begin;
    T* const weights = work.weights + number * kBlock;
    T* const grad_scores = work.grad_scores + number * kBlock;
    const NextMask<T> next{strip, block.begin + Shape::kBlockKeys};
    over_tiles<Shape, false>(
        forward, task.forward, strip, block, tiles, next, runs,
        [&](const auto& tile) REGARD_INLINED {
          const int at = tile.begin * kPitch;
          const ScoresOfBlock<T> scores{forward, task.forward, strip, block.begin};
          const auto products =
              Factors::product(tile, work.keys, first, strip.queries, forward.head_dim);
          weigh(tile, scores, products, work, strip, weights + at);
          if (work.score_factors) find_score_factors(tile, scores, work, number);
          if (wants_scores)
            differentiate(
                tile,
                Factors::product(tile, work.values, first, strip.grad_outputs, forward.value_dim),
                strip, !drops, weights + at, grad_scores + at);
          if (drops)
            drop(forward, task.forward, strip, dropout, block.begin + tile.begin, wants_scores,
                 weights + at, grad_scores + at);
        });
  }

  // Converts gradients of scores to gradients of products.
  REGARD_NOINLINE void apply_factors(const BackwardWorkspace<Shape>& work, int number,
                                     const KeyRuns<Shape>& runs) {
    for_vectors_of_runs(work, number, runs, [&](int at) {
      const Vec<T> gradient = load(work.grad_scores + at);
      const Mask<T> is_hidden = as_bits<T>(gradient) == as_bits<T>(broadcast(T(-0.0)));
      store(work.grad_scores + at,
            select<T>(is_hidden, gradient, gradient * load(work.score_factors + at) + Vec<T>{}));
    });
  }

  // slope_terms[lane] -= sum over keys of dS |position - key|, for the block at `key`.
  REGARD_NOINLINE void add_slope_terms(const BackwardWorkspace<Shape>& work, int number,
                                       const KeyRuns<Shape>& runs, std::int64_t key,
                                       T* slope_terms) {
    const BackwardStrip<T>& strip = work.strips[number];
    for (int lane = 0; lane < strip.vectors * kLanes<T>; ++lane) {
      T sum = 0;
      for (int i = 0; i < runs.count; ++i)
        for (int k = runs.run[i].begin; k < runs.run[i].end; ++k) {
          const std::int64_t distance = strip.positions[lane] - (key + k);
          const T gradient = work.grad_scores[k * kPitch + number * kBlock + lane];
          sum -= gradient * static_cast<T>(distance < 0 ? -distance : distance);
        }
      slope_terms[lane] += sum;
    }
  }

  // terms[head][distances - 1 + key - position] += dS, for the block at `key`. Keys beyond the
  // table add to the last column on their side.
  REGARD_NOINLINE void add_distance_terms(const AttentionProblem& forward,
                                          const BackwardWorkspace<Shape>& work, int number,
                                          const KeyRuns<Shape>& runs, std::int64_t key,
                                          double* terms) {
    const BackwardStrip<T>& strip = work.strips[number];
    const T* const gradients = work.grad_scores + number * kBlock;
    const std::int64_t group = forward.heads / forward.kv_heads;
    const std::int64_t last = 2 * forward.distances - 2;
    if (group > 1) {
      for (int lane = 0; lane < strip.rows; ++lane) {
        double* const own = terms + (strip.first_row + lane) % group * (last + 1);
        const std::int64_t column = forward.distances - 1 + key - strip.positions[lane];
        for (int i = 0; i < runs.count; ++i)
          for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
            own[clamp(column + k, 0, last)] += static_cast<double>(gradients[k * kPitch + lane]);
      }
      return;
    }
    // Terms with the same lane - k are first summed in T: there are few per sum.
    constexpr int kZero = Shape::kBlockKeys - 1;
    T sums[kZero + Shape::kStripLanes + kLanes<T>] = {};
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; ++k) {
        const T* const from = gradients + k * kPitch;
        T* const to = sums + kZero - k;
        int lane = 0;
        for (; lane + kLanes<T> <= strip.rows; lane += kLanes<T>)
          store(to + lane, load<T>(to + lane) + load(from + lane));
        for (; lane < strip.rows; ++lane) to[lane] += from[lane];
      }
    const std::int64_t column = forward.distances - 1 + key - strip.positions[0] + kZero;
    for (int i = 0; i < kZero + strip.rows; ++i)
      terms[clamp(column - i, 0, last)] += static_cast<double>(sums[i]);
  }

 private:
  template <class Body>
  REGARD_INLINE void for_vectors_of_runs(const BackwardWorkspace<Shape>& work, int number,
                                         const KeyRuns<Shape>& runs, Body body) {
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end; ++k)
        for (int v = 0; v < work.strips[number].vectors; ++v)
          body(k * kPitch + number * kBlock + v * kLanes<T>);
  }

  // Computes P for a tile.
  template <class Tile, class Product>
  REGARD_INLINE void weigh(const Tile& tile, const ScoresOfBlock<T>& scores, const Product& product,
                           const BackwardWorkspace<Shape>& work, const BackwardStrip<T>& strip,
                           T* weights) {
    const T* const bias = work.bias + tile.begin * kPitch;
    Accumulators<T, kRows, Tile::kVectors> acc;
    score_tile<Shape>(acc, tile, scores, product, bias, work.capped_scores);
    fill_unseen<Shape>(weights, tile, strip.vectors, T(-0.0));
#pragma GCC unroll 8
    for (int v = 0; v < Tile::kVectors; ++v) {
      const int lane = tile.lane + v * kLanes<T>;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        store(weights + r * kPitch + lane,
              weight_of_exponent<T, Tile::kBias>(exponent_below_lse<T>(acc[r][v], strip.lse, lane),
                                                 bias, r * kPitch + lane));
    }
  }

  // Computes the factors of a tile's score gradients, after its scores have been computed.
  template <class Tile>
  REGARD_NOINLINE void find_score_factors(const Tile& tile, const ScoresOfBlock<T>& scores,
                                          const BackwardWorkspace<Shape>& work, int number) {
    constexpr int kWidth = Tile::kVectors * kLanes<T>, kAll = kRows * kWidth;
    const T* const scales = scores.problem.scales.data ? work.strips[number].scales : nullptr;
    T own[kAll];
    if (transforms_scores(scores.strip))
      derivatives_of_scores<Shape>(scores, tile, kWidth, work.capped_scores, own);
    else
      for (int i = 0; i < kAll; i += kLanes<T>) store(own + i, broadcast(T(1)));
    T* const factors = work.score_factors + tile.begin * kPitch + number * kBlock;
    fill_unseen<Shape>(factors, tile, work.strips[number].vectors, T(0));
    for (int v = 0; v < Tile::kVectors; ++v) {
      const int lane = tile.lane + v * kLanes<T>;
      const Vec<T> scale = scales ? load(scales + lane) : broadcast(T(1));
      for (int r = 0; r < kRows; ++r)
        store(factors + r * kPitch + lane, load<T>(own + r * kWidth + v * kLanes<T>) * scale);
    }
  }

  REGARD_INLINE Vec<T> gradient_of_score(Vec<T> weight, Vec<T> gradient_of_weight, Vec<T> delta,
                                         bool may_be_hidden) {
    const Vec<T> gradient =
        weight * (gradient_of_weight - delta) + Vec<T>{};  // -0.0 is for hidden keys
    if (!may_be_hidden) return gradient;
    const Mask<T> is_hidden = as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0)));
    return select<T>(is_hidden, weight, gradient);
  }

  // Computes dS for a tile whose weights are known, or dP if not `finishes`.
  template <class Tile, class Product>
  REGARD_INLINE void differentiate(const Tile& tile, const Product& product,
                                   const BackwardStrip<T>& strip, bool finishes, const T* weights,
                                   T* grad_scores) {
    constexpr int kVectors = Tile::kVectors;
    Accumulators<T, kRows, kVectors> acc;
    product.template multiply<kRows, kVectors>(acc, tile.lane);
    fill_unseen<Shape>(grad_scores, tile, strip.vectors, T(-0.0));
    if (__builtin_expect(!finishes, false))
      return store_tile<T, kRows, kVectors>(acc, grad_scores + tile.lane, kPitch);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int lane = tile.lane + v * kLanes<T>;
      const Vec<T> delta = load(strip.delta + lane);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        store(grad_scores + r * kPitch + lane,
              gradient_of_score(load(weights + r * kPitch + lane), acc[r][v], delta,
                                Tile::kBias == Bias::hides));
    }
  }

  // Applies dropout to a tile's weights, and computes dS from dP and the dropout factors.
  REGARD_NOINLINE void drop(const AttentionProblem& forward, const AttentionTask& task,
                            const BackwardStrip<T>& strip, const DropoutRows<Shape>& rows,
                            std::int64_t key, bool wants_scores, T* weights, T* grad_scores) {
    for (int r = 0; r < kRows; r += kKeysOfCounter)
      for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>) {
        const Vec<T> delta = load(strip.delta + lane);
        dropout_factors<Shape>(forward, task, rows, key + r, lane, [&](int i, Vec<T> factor) {
          const int at = (r + i) * kPitch + lane;
          const Vec<T> weight = load(weights + at);
          store(weights + at, dropped_weight<T>(weight, factor));
          if (wants_scores)
            store(grad_scores + at,
                  gradient_of_score(weight, load(grad_scores + at) * factor, delta, true));
        });
      }
  }
};

}  // namespace
}  // namespace regard
