// The score of the keys' mean, the softcap and the caller's function, which change a tile's scores,
// and the derivatives of the latter two.
#pragma once

#include "rows.hpp"
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

// Whether scores are more than scaled products of queries and keys.
template <class T>
REGARD_INLINE bool transforms_scores(const StripRows<T>& strip) {
  return strip.mean_scores || strip.softcaps || strip.function_positions;
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
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void call_for_tile(const ScoresOfBlock<T>& block, TileKeys tile, int width,
                                   void* function, T* scores) {
  constexpr int kRows = Shape::kRows;
  const AttentionProblem& problem = block.problem;
  const std::int64_t key = block.begin + tile.begin;
  const int keys = tile.end - tile.begin;
  const int left = block.strip.rows - tile.lane, lanes = left < width ? left : width;
  const std::int64_t heads = problem.heads / problem.kv_heads;
  const std::int64_t* const positions = block.strip.function_positions + tile.lane;
  if (heads == 1) {
    if (lanes > 0)
      call_function(problem, block.task, function, 0, scores, lanes, keys, width, positions, key);
    return;
  }
  std::int64_t head = (block.strip.first_row + tile.lane) % heads;
  for (std::int64_t first = 0; first < heads && first < lanes; ++first) {
    T own[kRows * Shape::kStripLanes];
    std::int64_t own_positions[Shape::kStripLanes], queries = 0;
    for (std::int64_t lane = first; lane < lanes; lane += heads, ++queries) {
      own_positions[queries] = positions[lane];
      for (int k = 0; k < kRows; ++k) own[k * width + queries] = scores[k * width + lane];
    }
    call_function(problem, block.task, function, head, own, queries, keys, width, own_positions,
                  key);
    for (std::int64_t lane = first, query = 0; lane < lanes; lane += heads, ++query)
      for (int k = 0; k < kRows; ++k) scores[k * width + lane] = own[k * width + query];
    if (++head == heads) head = 0;
  }
}

// scores = function(capped)
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void function_of_scores(const ScoresOfBlock<T>& block, TileKeys tile, int width,
                                        const T* capped, T* scores) {
  for (int i = 0; i < Shape::kRows * width; i += kLanes<T>) store(scores + i, load(capped + i));
  call_for_tile<Shape>(block, tile, width, block.problem.score_function->function, scores);
  for (int i = 0; i < Shape::kRows * width; i += kLanes<T>)
    store(scores + i, within_limits<T>(load<T>(scores + i)));
}

// Adds the scores of the mean and caps scores, in place. A separate function, so that other tiles
// keep their registers.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void cap_scores(const ScoresOfBlock<T>& block, TileKeys tile, int width,
                                T* scores) {
  const auto change = [&](const T* numbers, auto changed) {
    for (int lane = 0; numbers && lane < width; lane += kLanes<T>) {
      const Vec<T> number = load(numbers + tile.lane + lane);
      for (int r = 0; r < Shape::kRows; ++r) {
        T* const at = scores + r * width + lane;
        store(at, changed(load<T>(at), number));
      }
    }
  };
  change(block.strip.mean_scores, [](Vec<T> score, Vec<T> mean) { return score + mean; });
  change(block.strip.softcaps, [](Vec<T> score, Vec<T> cap) { return capped<T>(score, cap); });
}

// Caps scores, [kRows][width], in place, and passes the function's results for these scores to
// load(scores).
template <class Shape, class Load, class T = typename Shape::Element>
REGARD_INLINE void transform_scores(const ScoresOfBlock<T>& block, TileKeys tile, int width,
                                    T* scores, Load load) {
  cap_scores<Shape>(block, tile, width, scores);
  if (!block.strip.function_positions) return load(scores);
  T changed[Shape::kRows * Shape::kStripLanes];
  function_of_scores<Shape>(block, tile, width, scores, changed);
  load(changed);
}

// factors = the derivatives of scores with respect to scaled products.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void derivatives_of_scores(const ScoresOfBlock<T>& block, TileKeys tile, int width,
                                           const T* capped, T* factors) {
  const bool has_function = block.problem.score_function != nullptr;
  for (int i = 0; i < Shape::kRows * width; i += kLanes<T>)
    store(factors + i, has_function ? load(capped + i) : broadcast(T(1)));
  if (has_function)
    call_for_tile<Shape>(block, tile, width, block.problem.score_function->derivative, factors);
  if (!block.strip.softcaps) return;
  for (int lane = 0; lane < width; lane += kLanes<T>) {
    const Vec<T> softcap = load(block.strip.softcaps + tile.lane + lane);
    for (int r = 0; r < Shape::kRows; ++r) {
      const int at = r * width + lane;
      store(factors + at,
            load<T>(factors + at) * derivative_of_cap<T>(load<T>(capped + at), softcap));
    }
  }
}

}  // namespace
}  // namespace regard
