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
  template <int kVectors>
  REGARD_NOINLINE Runs compute(const BackwardProblem& problem, const BackwardTask& task,
                               const BackwardWorkspace<T>& work, std::int64_t key, int count, bool wants_scores) {
    constexpr int kWidth = kVectors * kLanes<T>;
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
    for (int k = 0; k < seen; k += kRows) {
      const TileKind kind = kinds[k / kRows];
      if (kind == TileKind::hidden) continue;
      add_tile_to_runs(runs, k, k + kRows < seen ? k + kRows : seen, kind == TileKind::hiding);
      const Tile tile{work.keys + (key - work.piece.begin + k) * work.key_stride,
                      work.values + (key - work.piece.begin + k) * work.value_stride, k * kWidth};
      switch (kind) {
        case TileKind::visible: weights<kVectors, Bias::none>(problem, work, tile); break;
        case TileKind::biased: weights<kVectors, Bias::adds>(problem, work, tile); break;
        default: weights<kVectors, Bias::hides>(problem, work, tile);
      }
      if (drops) {
        drop<kVectors>(problem, task, work, dropout, tile, key + k, wants_scores);
      } else if (wants_scores) {
        if (kind == TileKind::hiding)
          grad_scores<kVectors, true>(problem, work, tile);
        else
          grad_scores<kVectors, false>(problem, work, tile);
      }
    }
    return runs;
  }

  // dS times the cap's derivative 1 - (score / softcap)^2, which stands between the score and what is added to it.
  template <int kVectors>
  REGARD_NOINLINE void apply_cap(const Runs& runs, const BackwardWorkspace<T>& work) {
    for_vectors_of_runs<kVectors>(runs, [&](int at) {
      const Vec<T> gradient = load(work.grad_scores + at);
      const Mask<T> is_hidden = as_bits<T>(gradient) == as_bits<T>(broadcast(T(-0.0)));
      store(work.grad_scores + at, select<T>(is_hidden, gradient, gradient * load(work.cap_factors + at) + Vec<T>{}));
    });
  }

  // slope_terms[lane] -= sum over keys of dS |position - key|, with the block's first key.
  template <int kVectors>
  REGARD_NOINLINE void add_slope_terms(const Runs& runs, const BackwardWorkspace<T>& work, std::int64_t key,
                                       T* slope_terms) {
    constexpr int kWidth = kVectors * kLanes<T>;
    for (int lane = 0; lane < kWidth; ++lane) {
      T sum = 0;
      for (int i = 0; i < runs.count; ++i)
        for (int k = runs.run[i].begin; k < runs.run[i].end; ++k) {
          const std::int64_t distance = work.strip.positions[lane] - (key + k);
          const T gradient = work.grad_scores[k * kWidth + lane];
          sum -= gradient * static_cast<T>(distance < 0 ? -distance : distance);
        }
      slope_terms[lane] += sum;
    }
  }

 private:
  struct Tile {
    const T* keys;
    const T* values;
    int at;  // of its first element in the block
  };

  static bool sees_all(const AttentionTask& task, const StripRows<T>& strip, std::int64_t key, int count) {
    return !task.mask && !task.bias && !strip.slopes && holds(strip.shared, key, key + round_up(count, kRows));
  }

  template <int kVectors, class Body>
  REGARD_INLINE void for_vectors_of_runs(const Runs& runs, Body body) {
    for (int i = 0; i < runs.count; ++i)
      for (int at = runs.run[i].begin * kVectors; at < runs.run[i].end * kVectors; ++at) body(at * kLanes<T>);
  }

  template <int kVectors, Bias kBias>
  REGARD_NOINLINE void weights(const BackwardProblem& problem, const BackwardWorkspace<T>& work, const Tile& tile) {
    constexpr int kWidth = kVectors * kLanes<T>;
    const T* bias = work.bias + tile.at;
    T* weights = work.weights + tile.at;
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    multiply_rows<T, kRows, kVectors>(acc, tile.keys, work.key_stride, work.queries, kWidth,
                                      problem.forward.head_dim);
    if (__builtin_expect(work.softcap != T(0), false)) {
      store_tile<T, kRows, kVectors>(acc, weights);
      cap_scores<T, kRows * kVectors>(work.softcap, weights);
      cap_factors<kRows * kVectors>(work.softcap, weights, work.cap_factors + tile.at);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = load<T>(weights + (r * kVectors + v) * kLanes<T>);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> lse = load(work.lse + v * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = (r * kVectors + v) * kLanes<T>;
        Vec<T> score = acc[r][v];
        if constexpr (kBias != Bias::none) score = with_added<T, kBias>(score, load(bias + at));
        // No weight is above 1. But lse is rounded, and where scores are as large as 1e30, the difference of a
        // score and its lse may be larger than any exponent.
        score = lse < score ? lse : score;  // NaN stays
        store(weights + at, weight_of<T, kBias>(score, lse, bias, at));
      }
    }
  }

  template <int kCount>
  REGARD_NOINLINE void cap_factors(T softcap, const T* scores, T* factors) {
    for (int i = 0; i < kCount; ++i) {
      const Vec<T> tanh = load(scores + i * kLanes<T>) / broadcast(softcap);
      store(factors + i * kLanes<T>, (broadcast(T(1)) - tanh) * (broadcast(T(1)) + tanh));
    }
  }

  template <int kVectors>
  REGARD_INLINE void multiply_values(const BackwardProblem& problem, const BackwardWorkspace<T>& work,
                                     const Tile& tile, Accumulators<T, kRows, kVectors>& acc) {
    clear<T, kRows, kVectors>(acc);
    multiply_rows<T, kRows, kVectors>(acc, tile.values, work.value_stride, work.grad_outputs, kVectors * kLanes<T>,
                                      problem.forward.value_dim);
  }

  REGARD_INLINE Vec<T> gradient_of_score(Vec<T> weight, Vec<T> gradient_of_weight, Vec<T> delta, bool may_be_hidden) {
    const Vec<T> gradient = weight * (gradient_of_weight - delta) + Vec<T>{};  // -0.0 is for hidden keys
    if (!may_be_hidden) return gradient;
    const Mask<T> is_hidden = as_bits<T>(weight) == as_bits<T>(broadcast(T(-0.0)));
    return select<T>(is_hidden, weight, gradient);
  }

  template <int kVectors, bool kHides>
  REGARD_NOINLINE void grad_scores(const BackwardProblem& problem, const BackwardWorkspace<T>& work,
                                   const Tile& tile) {
    Accumulators<T, kRows, kVectors> acc;
    multiply_values<kVectors>(problem, work, tile, acc);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> delta = load(work.delta + v * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int at = tile.at + (r * kVectors + v) * kLanes<T>;
        store(work.grad_scores + at, gradient_of_score(load(work.weights + at), acc[r][v], delta, kHides));
      }
    }
  }

  // The same with dropout, which `weights` gets afterwards.
  template <int kVectors>
  REGARD_NOINLINE void drop(const BackwardProblem& problem, const BackwardTask& task, const BackwardWorkspace<T>& work,
                            const DropoutRows<Shape>& rows, const Tile& tile, std::int64_t key, bool wants_scores) {
    T* const grad_scores = work.grad_scores + tile.at;
    if (wants_scores) {
      Accumulators<T, kRows, kVectors> acc;
      multiply_values<kVectors>(problem, work, tile, acc);
      store_tile<T, kRows, kVectors>(acc, grad_scores);
    }
    for (int r = 0; r < kRows; r += kKeysOfCounter)
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> delta = load(work.delta + v * kLanes<T>);
        dropout_factors<Shape>(problem.forward, task.forward, rows, key + r, v * kLanes<T>, [&](int i, Vec<T> factor) {
          const int at = ((r + i) * kVectors + v) * kLanes<T>;
          const Vec<T> weight = load(work.weights + tile.at + at);
          store(work.weights + tile.at + at, dropped_weight<T>(weight, factor));
          if (!wants_scores) return;
          store(grad_scores + at, gradient_of_score(weight, load<T>(grad_scores + at) * factor, delta, true));
        });
      }
  }
};

}  // namespace
}  // namespace regard
