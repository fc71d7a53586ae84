// The weights of a strip and a block of keys, and the gradients of its scores:
//
//   P = 2^(score - lse)    dP = grad_output value^T    dS = P (dP - D)
//
// with dropout Z on both P, as the values see it, and dP. Hidden keys have P = dS = -0.0, whatever they hold.
#pragma once

#include "../attention/dropout.hpp"
#include "../attention/mask_tiles.hpp"
#include "../attention/online_softmax.hpp"
#include "products.hpp"
#include "workspace.hpp"

namespace regard {
namespace {

template <class Shape>
struct BackwardBlock {
  using T = typename Shape::Element;
  using Runs = KeyRuns<Shape>;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kBlockTiles = Shape::kBlockKeys / kRows;

  // Fills work.weights and work.grad_scores for the tiles of the runs. The block begins at `key`, and has this many
  // keys in the array. Without gradients of scores (only those of values are wanted) it leaves them out.
  REGARD_NOINLINE Runs compute(const BackwardProblem& problem, const BackwardTask& task,
                               const BackwardWorkspace<T>& work, std::int64_t key, int count, bool wants_scores) {
    Runs runs;
    TileKind kinds[kBlockTiles];
    if (sees_all(task.forward, work.strip, key, count)) {
      for (TileKind& kind : kinds) kind = TileKind::visible;
    } else if (!classify_tiles<Shape>(problem.forward, task.forward, work.strip, key, count, work.bias, kinds)) {
      return runs;
    }
    DropoutRows<Shape> dropout;
    const bool drops = problem.forward.dropout_factor != 0;
    if (drops) find_dropout_rows(problem.forward, task.forward, work.strip, dropout);
    // Beyond what the strip sees by position keys are hidden.
    const int seen = static_cast<int>(seen_of_block(work.strip.seen, key, count).end);
    const int vectors = work.strip.vectors;
    const std::int64_t first = key - work.piece.begin;
    runs = runs_of<Shape>(kinds, seen);
    multiply_keys<Shape>(vectors, runs, {work.keys + first * work.key_stride, work.key_stride}, work.queries,
                         problem.forward.head_dim, false, work.weights);
    for_tiles<Shape>(kinds, seen, [&](int k, int, TileKind kind) {
      switch (kind) {
        case TileKind::visible: weights<Bias::none>(work, k); break;
        case TileKind::biased: weights<Bias::adds>(work, k); break;
        default: weights<Bias::hides>(work, k);
      }
    });
    // The gradients of weights lie where those of scores will.
    if (wants_scores)
      multiply_keys<Shape>(vectors, runs, {work.values + first * work.value_stride, work.value_stride},
                           work.grad_outputs, problem.forward.value_dim, false, work.grad_scores);
    else if (!drops)
      return runs;
    for_tiles<Shape>(kinds, seen, [&](int k, int, TileKind kind) {
      if (drops)
        drop(problem, task, work, dropout, key, k, wants_scores);
      else if (kind == TileKind::hiding)
        grad_scores<true>(work, k);
      else
        grad_scores<false>(work, k);
    });
    return runs;
  }

  // dS times the cap's derivative 1 - (score / softcap)^2, which stands between the score and what is added to it.
  REGARD_NOINLINE void apply_cap(const Runs& runs, const BackwardWorkspace<T>& work) {
    for_vectors_of_runs(runs, work.strip.vectors, [&](int at) {
      const Vec<T> gradient = load(work.grad_scores + at);
      const Mask<T> is_hidden = as_bits<T>(gradient) == as_bits<T>(broadcast(T(-0.0)));
      store(work.grad_scores + at, select<T>(is_hidden, gradient, gradient * load(work.cap_factors + at) + Vec<T>{}));
    });
  }

  // slope_terms[lane] -= sum over keys of dS |position - key|, with the block's first key.
  REGARD_NOINLINE void add_slope_terms(const Runs& runs, const BackwardWorkspace<T>& work, std::int64_t key,
                                       T* slope_terms) {
    const int width = work.strip.vectors * kLanes<T>;
    for (int lane = 0; lane < width; ++lane) {
      T sum = 0;
      for (int i = 0; i < runs.count; ++i)
        for (int k = runs.run[i].begin; k < runs.run[i].end; ++k) {
          const std::int64_t distance = work.strip.positions[lane] - (key + k);
          const T gradient = work.grad_scores[k * width + lane];
          sum -= gradient * static_cast<T>(distance < 0 ? -distance : distance);
        }
      slope_terms[lane] += sum;
    }
  }

 private:
  static bool sees_all(const AttentionTask& task, const StripRows<T>& strip, std::int64_t key, int count) {
    return !task.mask && !task.bias && !strip.slopes && holds(strip.shared, key, key + round_up(count, kRows));
  }

  template <class Body>
  REGARD_INLINE void for_vectors_of_runs(const Runs& runs, int vectors, Body body) {
    for (int i = 0; i < runs.count; ++i)
      for (int at = runs.run[i].begin * vectors; at < runs.run[i].end * vectors; ++at) body(at * kLanes<T>);
  }

  // Scores to weights, in the tile from the block's key `k` on.
  template <Bias kBias>
  REGARD_NOINLINE void weights(const BackwardWorkspace<T>& work, int k) {
    const int width = work.strip.vectors * kLanes<T>;
    T* const weights = work.weights + k * width;
    const T* const bias = work.bias + k * width;
    if (__builtin_expect(work.softcap != T(0), false)) {
      cap_scores(work.softcap, weights, kRows * work.strip.vectors);
      cap_factors(work.softcap, weights, work.cap_factors + k * width, kRows * work.strip.vectors);
    }
    for (int lane = 0; lane < width; lane += kLanes<T>) {
      const Vec<T> lse = load(work.lse + lane);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int at = r * width + lane;
        Vec<T> score = load<T>(weights + at);
        if constexpr (kBias != Bias::none) score = with_added<T, kBias>(score, load(bias + at));
        // No weight is above 1. But lse is rounded, and where scores are as large as 1e30, the difference of a
        // score and its lse may be larger than any exponent.
        score = lse < score ? lse : score;  // NaN stays
        store(weights + at, weight_of<T, kBias>(score, lse, bias, at));
      }
    }
  }

  REGARD_NOINLINE void cap_factors(T softcap, const T* scores, T* factors, int vectors_in_all) {
    for (int i = 0; i < vectors_in_all; ++i) {
      const Vec<T> tanh = load(scores + i * kLanes<T>) / broadcast(softcap);
      store(factors + i * kLanes<T>, (broadcast(T(1)) - tanh) * (broadcast(T(1)) + tanh));
    }
  }

  REGARD_INLINE Vec<T> gradient_of_score(Vec<T> weight, Vec<T> gradient_of_weight, Vec<T> delta, bool may_be_hidden) {
    const Vec<T> gradient = weight * (gradient_of_weight - delta) + Vec<T>{};  // -0.0 is for hidden keys
    if (!may_be_hidden) return gradient;
    const Mask<T> is_hidden = as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0)));
    return select<T>(is_hidden, weight, gradient);
  }

  template <bool kHides>
  REGARD_NOINLINE void grad_scores(const BackwardWorkspace<T>& work, int k) {
    const int width = work.strip.vectors * kLanes<T>;
    const T* const weights = work.weights + k * width;
    T* const gradients = work.grad_scores + k * width;
    for (int lane = 0; lane < width; lane += kLanes<T>) {
      const Vec<T> delta = load(work.delta + lane);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int at = r * width + lane;
        store(gradients + at, gradient_of_score(load(weights + at), load<T>(gradients + at), delta, kHides));
      }
    }
  }

  // The same with dropout, which `weights` gets afterwards.
  REGARD_NOINLINE void drop(const BackwardProblem& problem, const BackwardTask& task, const BackwardWorkspace<T>& work,
                            const DropoutRows<Shape>& rows, std::int64_t key, int k, bool wants_scores) {
    const int width = work.strip.vectors * kLanes<T>;
    for (int r = 0; r < kRows; r += kKeysOfCounter)
      for (int lane = 0; lane < width; lane += kLanes<T>) {
        const Vec<T> delta = load(work.delta + lane);
        dropout_factors<Shape>(problem.forward, task.forward, rows, key + k + r, lane, [&](int i, Vec<T> factor) {
          const int at = (k + r + i) * width + lane;
          const Vec<T> weight = load(work.weights + at);
          store(work.weights + at, dropped_weight<T>(weight, factor));
          if (!wants_scores) return;
          store(work.grad_scores + at, gradient_of_score(weight, load(work.grad_scores + at) * factor, delta, true));
        });
      }
  }
};

}  // namespace
}  // namespace regard
