// The softcap and the caller's function of a tile's scores, and the derivatives of both.
#pragma once

#include "score_rule.hpp"

namespace regard {
namespace {

// A strip and a block whose scores are formed.
template <class T>
struct ScoresOfBlock {
  const AttentionProblem& problem;
  const AttentionTask& task;
  const StripRows<T>& strip;
  std::int64_t begin;  // its first key
};

// A tile's scores, [keys][width], of a strip's lanes from `lane` on.
template <class T>
struct ScoresOfTile : ScoresOfBlock<T> {
  std::int64_t key;  // the tile's first
  int keys;          // that exist
  int lane;
  int width;
};

template <class T>
REGARD_INLINE ScoresOfTile<T> scores_of_tile(const ScoresOfBlock<T>& block, int begin, int end,
                                             int lane, int width) {
  return {block, block.begin + begin, end - begin, lane, width};
}

// Whether scores are products of queries and keys as they come.
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

// Calls a function of the problem for a tile in natural units: once for each head of the group,
// whose lanes are brought side by side.
template <int kRows, class T>
REGARD_NOINLINE void call_for_tile(const ScoresOfTile<T>& tile, void* function, T* scores) {
  const AttentionProblem& problem = tile.problem;
  const int left = tile.strip.rows - tile.lane, lanes = left < tile.width ? left : tile.width;
  const std::int64_t* const positions = tile.strip.function_positions + tile.lane;
  if (lanes <= 0) return;
  const std::int64_t heads = problem.heads / problem.kv_heads;
  if (heads == 1)
    return call_function(problem, tile.task, function, 0, scores, lanes, tile.keys, tile.width,
                         positions, tile.key);
  const int group = static_cast<int>(heads < lanes ? heads : lanes);
  constexpr int kMostLanes = 4 * kLanes<T>;
  for (int first = 0; first < group; ++first) {
    T own[kRows * kMostLanes];
    std::int64_t own_positions[kMostLanes];
    int queries = 0;
    for (int lane = first; lane < lanes; lane += group, ++queries) {
      own_positions[queries] = positions[lane];
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) own[k * kMostLanes + queries] = scores[k * tile.width + lane];
    }
    const std::int64_t head = (tile.strip.first_row + tile.lane + first) % heads;
    call_function(problem, tile.task, function, head, own, queries, tile.keys, kMostLanes,
                  own_positions, tile.key);
    for (int query = 0, lane = first; query < queries; ++query, lane += group)
#pragma GCC unroll 8
      for (int k = 0; k < kRows; ++k) scores[k * tile.width + lane] = own[k * kMostLanes + query];
  }
}

// scores = function(capped), both in log2 units.
template <class T>
REGARD_INLINE Vec<T> in_natural_units(Vec<T> score) {
  return score * broadcast(static_cast<T>(kLn2));
}

template <int kRows, int kVectors, class T>
REGARD_NOINLINE void function_of_scores(const ScoresOfTile<T>& tile, const T* capped, T* scores) {
  constexpr int kAll = kRows * kVectors * kLanes<T>;
  for (int i = 0; i < kAll; i += kLanes<T>)
    store(scores + i, in_natural_units<T>(load<T>(capped + i)));
  call_for_tile<kRows>(tile, tile.problem.score_function->function, scores);
  for (int i = 0; i < kAll; i += kLanes<T>)
    store(scores + i, in_log2_units<T>(load<T>(scores + i)));
}

// Products to capped scores, in place. Apart, so that tiles without a cap keep their registers.
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

// Products to capped scores, in place, and what a function makes of these to load(scores).
template <int kRows, int kVectors, class T, class Load>
REGARD_INLINE void transform_scores(const ScoresOfTile<T>& tile, T* scores, Load load) {
  cap_scores<kRows, kVectors>(tile, scores);
  if (!tile.strip.function_positions) return load(scores);
  T changed[kRows * kVectors * kLanes<T>];
  function_of_scores<kRows, kVectors>(tile, scores, changed);
  load(changed);
}

// factors = the derivatives of scores by the products that they come from, times the scale, where
// queries have scales of their own.
template <int kRows, int kVectors, class T>
REGARD_NOINLINE void derivatives_of_scores(const ScoresOfTile<T>& tile, const T* capped,
                                           T* factors) {
  constexpr int kAll = kRows * kVectors * kLanes<T>;
  for (int i = 0; i < kAll; i += kLanes<T>)
    store(factors + i, in_natural_units<T>(load<T>(capped + i)));
  if (tile.problem.score_function)
    call_for_tile<kRows>(tile, tile.problem.score_function->derivative, factors);
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
