// The softcap and the caller's function of a tile's scores, and the derivatives of both.
#pragma once

#include "rows.hpp"
#include "score_rule.hpp"

namespace regard {
namespace {

template <class T>
constexpr int kMostLanes = 3 * kLanes<T>;  // of a strip

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

// Whether scores are more than scaled products of queries and keys.
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

// Calls a function of the problem for a tile's scores, [kRows][lanes]: once for each head, whose
// lanes are made contiguous if there are several heads.
template <int kRows, class T>
REGARD_NOINLINE void call_for_tile(const ScoresOfTile<T>& tile, int width, void* function,
                                   T* scores) {
  const AttentionProblem& problem = tile.problem;
  const int left = tile.strip.rows - tile.lane, lanes = left < width ? left : width;
  const std::int64_t heads = problem.heads / problem.kv_heads;
  const std::int64_t* const positions = tile.strip.function_positions + tile.lane;
  if (heads == 1) {
    if (lanes > 0)
      call_function(problem, tile.task, function, 0, scores, lanes, tile.keys, width, positions,
                    tile.key);
    return;
  }
  std::int64_t head = (tile.strip.first_row + tile.lane) % heads;
  for (std::int64_t first = 0; first < heads && first < lanes; ++first) {
    T own[kRows * kMostLanes<T>];
    std::int64_t own_positions[kMostLanes<T>], queries = 0;
    for (std::int64_t lane = first; lane < lanes; lane += heads, ++queries) {
      own_positions[queries] = positions[lane];
      for (int k = 0; k < kRows; ++k) own[k * width + queries] = scores[k * width + lane];
    }
    call_function(problem, tile.task, function, head, own, queries, tile.keys, width, own_positions,
                  tile.key);
    for (std::int64_t lane = first, query = 0; lane < lanes; lane += heads, ++query)
      for (int k = 0; k < kRows; ++k) scores[k * width + lane] = own[k * width + query];
    if (++head == heads) head = 0;
  }
}

// scores = function(capped)
template <int kRows, class T>
REGARD_NOINLINE void function_of_scores(const ScoresOfTile<T>& tile, int width, const T* capped,
                                        T* scores) {
  for (int i = 0; i < kRows * width; i += kLanes<T>) store(scores + i, load(capped + i));
  call_for_tile<kRows>(tile, width, tile.problem.score_function->function, scores);
  for (int i = 0; i < kRows * width; i += kLanes<T>)
    store(scores + i, within_limits<T>(load<T>(scores + i)));
}

// Caps scores in place. A separate function, so that tiles without a cap keep their registers.
template <int kRows, class T>
REGARD_NOINLINE void cap_scores(const ScoresOfTile<T>& tile, int width, T* scores) {
  if (!tile.strip.softcaps) return;
  for (int lane = 0; lane < width; lane += kLanes<T>) {
    const Vec<T> softcap = load(tile.strip.softcaps + tile.lane + lane);
    for (int r = 0; r < kRows; ++r) {
      T* const at = scores + r * width + lane;
      store(at, capped<T>(load<T>(at), softcap));
    }
  }
}

// Caps scores, [kRows][width], in place, and passes the function's results for these scores to
// load(scores).
template <int kRows, class T, class Load>
REGARD_INLINE void transform_scores(const ScoresOfTile<T>& tile, int width, T* scores, Load load) {
  cap_scores<kRows>(tile, width, scores);
  if (!tile.strip.function_positions) return load(scores);
  T changed[kRows * kMostLanes<T>];
  function_of_scores<kRows>(tile, width, scores, changed);
  load(changed);
}

// factors = the derivatives of scores with respect to scaled products.
template <int kRows, class T>
REGARD_NOINLINE void derivatives_of_scores(const ScoresOfTile<T>& tile, int width, const T* capped,
                                           T* factors) {
  const bool has_function = tile.problem.score_function != nullptr;
  for (int i = 0; i < kRows * width; i += kLanes<T>)
    store(factors + i, has_function ? load(capped + i) : broadcast(T(1)));
  if (has_function)
    call_for_tile<kRows>(tile, width, tile.problem.score_function->derivative, factors);
  if (!tile.strip.softcaps) return;
  for (int lane = 0; lane < width; lane += kLanes<T>) {
    const Vec<T> softcap = load(tile.strip.softcaps + tile.lane + lane);
    for (int r = 0; r < kRows; ++r) {
      const int at = r * width + lane;
      store(factors + at,
            load<T>(factors + at) * derivative_of_cap<T>(load<T>(capped + at), softcap));
    }
  }
}

}  // namespace
}  // namespace regard
