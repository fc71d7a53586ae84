// The softcap and the caller's function of a tile's scores, and the derivatives of both.
#pragma once

#include "score_rule.hpp"

namespace regard {
namespace {

// A strip and a block whose scores are being computed.
template <class T>
struct ScoresOfBlock {
  const AttentionProblem& problem;
  const AttentionTask& task;
  const StripRows<T>& strip;
  std::int64_t begin;  // its first key
};

// A tile's scores, [keys][lanes], for a strip's lanes starting at `lane`.
template <class T>
struct ScoresOfTile : ScoresOfBlock<T> {
  std::int64_t key;  // first key of the tile
  int keys;          // number of existing keys
  int lane;
};

template <class T>
REGARD_INLINE ScoresOfTile<T> scores_of_tile(const ScoresOfBlock<T>& block, int begin, int end,
                                             int lane) {
  return {block, block.begin + begin, end - begin, lane};
}

// Whether scores are more than products of queries and keys.
template <class T>
REGARD_INLINE bool transforms_scores(const StripRows<T>& strip) {
  return strip.softcaps || strip.function_positions;
}

template <class T>
REGARD_INLINE void call_function(const AttentionProblem& problem, const AttentionTask& task,
                                 void* function, std::int64_t head, T* scores, std::int64_t queries,
                                 std::int64_t keys, std::int64_t stride,
                                 const std::int64_t* positions, std::int64_t key) {
  const DropoutOrigin& origin = problem.dropout_origin;
  reinterpret_cast<ScoreFunctionType<T>>(function)(
      scores, queries, keys, stride, positions, key + origin.position,
      task.first_head + head + origin.head, task.entry + origin.entry,
      problem.score_function->user_data);
}

// Calls a function of the problem for a tile of several heads, in natural units: once for each
// head, whose lanes are made contiguous.
template <int kHeads, int kRows, int kWidth, class T>
REGARD_NOINLINE void call_for_heads(const ScoresOfTile<T>& tile, std::int64_t group, int lanes,
                                    void* function, T* scores) {
  const std::int64_t heads = kHeads ? kHeads : group;
  const std::int64_t* const positions = tile.strip.function_positions + tile.lane;
  std::int64_t head = (tile.strip.first_row + tile.lane) % heads;
  for (std::int64_t first = 0; first < heads && first < lanes; ++first) {
    T own[kRows * kWidth];
    std::int64_t own_positions[kWidth];
#pragma GCC unroll 16
    for (std::int64_t lane = first, query = 0; lane < kWidth; lane += heads, ++query) {
      own_positions[query] = positions[lane];
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) own[k * kWidth + query] = scores[k * kWidth + lane];
    }
    call_function(tile.problem, tile.task, function, head, own, (lanes - first + heads - 1) / heads,
                  tile.keys, kWidth, own_positions, tile.key);
#pragma GCC unroll 16
    for (std::int64_t lane = first, query = 0; lane < kWidth; lane += heads, ++query)
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) scores[k * kWidth + lane] = own[k * kWidth + query];
    if (++head == heads) head = 0;
  }
}

template <int kRows, int kWidth, class T>
REGARD_NOINLINE void call_for_tile(const ScoresOfTile<T>& tile, void* function, T* scores) {
  const AttentionProblem& problem = tile.problem;
  const int left = tile.strip.rows - tile.lane, lanes = left < kWidth ? left : kWidth;
  if (lanes <= 0) return;
  const std::int64_t heads = problem.heads, kv_heads = problem.kv_heads;
  if (heads == kv_heads)
    return call_function(problem, tile.task, function, 0, scores, lanes, tile.keys, kWidth,
                         tile.strip.function_positions + tile.lane, tile.key);
  // Copies are faster if their distance is a constant, and a division takes 2% of a tile's time.
  if (heads == 2 * kv_heads)
    return call_for_heads<2, kRows, kWidth>(tile, 2, lanes, function, scores);
  if (heads == 4 * kv_heads)
    return call_for_heads<4, kRows, kWidth>(tile, 4, lanes, function, scores);
  if (heads == 8 * kv_heads)
    return call_for_heads<8, kRows, kWidth>(tile, 8, lanes, function, scores);
  call_for_heads<0, kRows, kWidth>(tile, heads / kv_heads, lanes, function, scores);
}

template <class T>
REGARD_INLINE Vec<T> in_natural_units(Vec<T> score) {
  return score * broadcast(static_cast<T>(kLn2));
}

// scores = function(capped), both in log2 units.
template <int kRows, int kVectors, class T>
REGARD_NOINLINE void function_of_scores(const ScoresOfTile<T>& tile, const T* capped, T* scores) {
  constexpr int kAll = kRows * kVectors * kLanes<T>;
  for (int i = 0; i < kAll; i += kLanes<T>)
    store(scores + i, in_natural_units<T>(load<T>(capped + i)));
  call_for_tile<kRows, kVectors * kLanes<T>>(tile, tile.problem.score_function->function, scores);
  for (int i = 0; i < kAll; i += kLanes<T>)
    store(scores + i, in_log2_units<T>(load<T>(scores + i)));
}

// Converts products to capped scores, in place. A separate function, so that tiles without a cap
// keep their registers.
template <int kRows, int kVectors, class T>
REGARD_NOINLINE void cap_scores(const ScoresOfTile<T>& tile, T* scores) {
  if (!tile.strip.softcaps) return;
  for (int v = 0; v < kVectors; ++v) {
    const Vec<T> softcap = load(tile.strip.softcaps + tile.lane + v * kLanes<T>);
    for (int r = 0; r < kRows; ++r) {
      T* const at = scores + (r * kVectors + v) * kLanes<T>;
      store(at, capped<T>(load<T>(at), softcap));
    }
  }
}

// Converts products to capped scores, in place, and passes the function's results for these scores
// to load(scores).
template <int kRows, int kVectors, class T, class Load>
REGARD_INLINE void transform_scores(const ScoresOfTile<T>& tile, T* scores, Load load) {
  cap_scores<kRows, kVectors>(tile, scores);
  if (!tile.strip.function_positions) return load(scores);
  T changed[kRows * kVectors * kLanes<T>];
  function_of_scores<kRows, kVectors>(tile, scores, changed);
  load(changed);
}

// factors = the derivatives of scores with respect to products, without the scale.
template <int kRows, int kVectors, class T>
REGARD_NOINLINE void derivatives_of_scores(const ScoresOfTile<T>& tile, const T* capped,
                                           T* factors) {
  constexpr int kAll = kRows * kVectors * kLanes<T>;
  for (int i = 0; i < kAll; i += kLanes<T>)
    store(factors + i, in_natural_units<T>(load<T>(capped + i)));
  if (tile.problem.score_function)
    call_for_tile<kRows, kVectors * kLanes<T>>(tile, tile.problem.score_function->derivative,
                                               factors);
  else
    for (int i = 0; i < kAll; i += kLanes<T>) store(factors + i, broadcast(T(1)));
  if (!tile.strip.softcaps) return;
  for (int v = 0; v < kVectors; ++v) {
    const Vec<T> softcap = load(tile.strip.softcaps + tile.lane + v * kLanes<T>);
    for (int r = 0; r < kRows; ++r) {
      const int at = (r * kVectors + v) * kLanes<T>;
      store(factors + at,
            load<T>(factors + at) * derivative_of_cap<T>(load<T>(capped + at), softcap));
    }
  }
}

}  // namespace
}  // namespace regard
