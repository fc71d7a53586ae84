// Softmax over keys that arrive tile by tile: a tile's scores become weights, which are accumulated
// in the strip's state (softmax_state.hpp).
//
// Scores are summed from zero. Starting the sum at minus the reference would cost bits at every
// step if the reference is large (a mask of -10000), and a key's score would depend on whether the
// call has a mask.
//
// Everything is summed in three levels, over a block, over a chunk and over chunks, which keeps the
// error small for any number of keys.
#pragma once

#include "scores.hpp"
#include "setup.hpp"
#include "tiles.hpp"

namespace regard {
namespace {

// A strip and the sums over its keys so far, relative to its references.
template <class T>
struct OnlineStrip : StripRows<T> {
  T* queries;  // [head_dim][kStripLanes], as the products of scores read them
  // For the current chunk:
  SoftmaxState<T> state;
  T* block_sum;           // [lanes]: sum of the current block's weights
  std::int64_t sum_rows;  // rows of `gathered` with sums of numbers other than weights
  std::int64_t all_rows;  // the other rows are sums over keys times values
  T* gathered;            // [all_rows][kStripLanes]
  bool is_fresh;          // nothing has been written to the sums with values yet
  // For the earlier chunks, merged. Null if there is one chunk and no sink.
  SoftmaxState<T> total;
  T* total_gathered;
  bool total_is_fresh;  // nothing has been written to total_gathered yet
  std::int64_t chunk;   // index of the current chunk
};

// The sums with values.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE T* outputs_of(const OnlineStrip<T>& strip) {
  return strip.gathered + strip.sum_rows * Shape::kStripLanes;
}

template <class Shape>
REGARD_INLINE bool merges_chunks(const AttentionProblem& problem) {
  return problem.sinks || problem.kv_len > Shape::kChunkKeys;
}

template <class T>
REGARD_INLINE SoftmaxState<T> take_state(std::int64_t lanes, Arena& arena) {
  return {arena.take<T>(lanes), arena.take<T>(lanes), arena.take<T>(lanes)};
}

template <class Shape, class T = typename Shape::Element>
REGARD_INLINE void take_online(const AttentionProblem& problem, std::int64_t sum_rows,
                               std::int64_t output_rows, Arena& arena, OnlineStrip<T>& strip) {
  constexpr std::int64_t lanes = Shape::kStripLanes;
  strip.queries = arena.take<T>(problem.head_dim * lanes);
  strip.sum_rows = sum_rows;
  strip.all_rows = sum_rows + output_rows;
  strip.gathered = arena.take<T>(strip.all_rows * lanes);
  strip.state = take_state<T>(lanes, arena);
  strip.block_sum = arena.take<T>(lanes);
  if (!merges_chunks<Shape>(problem)) return;
  strip.total = take_state<T>(lanes, arena);
  strip.total_gathered = arena.take<T>(strip.all_rows * lanes);
}

template <class Shape, class T = typename Shape::Element>
REGARD_INLINE void start_chunk(OnlineStrip<T>& strip) {
  start_state(strip.state, strip.vectors * kLanes<T>);
  for (std::int64_t i = 0; i < strip.sum_rows * Shape::kStripLanes; i += kLanes<T>)
    store(strip.gathered + i, Vec<T>{});
  strip.is_fresh = true;
}

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void start_online(const AttentionProblem& problem, const AttentionTask& task,
                                  OnlineStrip<T>& strip) {
  start_chunk<Shape>(strip);
  strip.chunk = 0;
  strip.total_is_fresh = true;
  if (!strip.total_gathered) return;
  const int lanes = strip.vectors * kLanes<T>;
  start_state(strip.total, lanes);
  if (problem.sinks) start_with_sinks(problem, task, strip.first_row, strip.total, lanes);
}

// Merges the chunk of `part`, the same rows, with the earlier chunks of a strip.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void merge_part(const OnlineStrip<T>& part, OnlineStrip<T>& strip) {
  const int lanes = strip.vectors * kLanes<T>;
  for (int lane = 0; lane < lanes; lane += kLanes<T>) {
    const Shares<T> shares = merge_lanes(strip.total, part.state, lane);
    for (std::int64_t row = 0; row < strip.all_rows; ++row) {
      const std::int64_t at = row * Shape::kStripLanes + lane;
      T* const to = strip.total_gathered + at;
      const Vec<T> added = load(part.gathered + at) * shares.part;
      store(to, strip.total_is_fresh ? added : load<T>(to) * shares.total + added);
    }
  }
  strip.total_is_fresh = false;
}

// Merges a strip's chunk with the earlier chunks and starts the next chunk.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void merge_chunk(OnlineStrip<T>& strip) {
  merge_part<Shape>(strip, strip);
  start_chunk<Shape>(strip);
}

// Before the keys of the block at `key`, merges the previous chunk if the block belongs to a new
// chunk.
template <class Shape, class T>
REGARD_INLINE void begin_block(OnlineStrip<T>& strip, std::int64_t key) {
  const std::int64_t chunk = key / Shape::kChunkKeys;
  if (chunk == strip.chunk) return;
  strip.chunk = chunk;
  if (!strip.is_fresh) merge_chunk<Shape>(strip);
}

// Leaves the result in the strip's own state: merges the last chunk, and sets sums to 0 if there
// were no keys.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void merge_all(const AttentionProblem& problem, OnlineStrip<T>& strip) {
  const bool is_one_chunk = strip.total_is_fresh && !problem.sinks;
  if (strip.total_gathered && !is_one_chunk) {
    if (!strip.is_fresh) merge_chunk<Shape>(strip);
    strip.state = strip.total;
    strip.gathered = strip.total_gathered;
    strip.is_fresh = strip.total_is_fresh;
  }
  if (!strip.is_fresh) return;
  for (std::int64_t i = 0; i < strip.all_rows * Shape::kStripLanes; i += kLanes<T>)
    store(strip.gathered + i, Vec<T>{});
}

template <class T>
REGARD_INLINE void start_block_sum(const OnlineStrip<T>& strip) {
  for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>)
    store(strip.block_sum + lane, broadcast(T(-0.0)));
}

template <class T>
REGARD_INLINE void end_block_sum(const OnlineStrip<T>& strip) {
  for (int lane = 0; lane < strip.vectors * kLanes<T>; lane += kLanes<T>) {
    T* const sum = strip.state.sum + lane;
    store(sum, load<T>(sum) + load<T>(strip.block_sum + lane));
  }
}

// A block's weights. `others` holds another number for each key and lane, relative to the
// reference, or is null.
template <class T>
struct BlockWeights {
  T* weights;  // [block keys][kStripLanes]
  T* others;
};

// The tile at key `begin` holds scores in the memory of its weights. Moves the reference of every
// lane in which a score exceeds the limit, rescales the sums of these lanes, and replaces the
// scores by weights.
template <class Shape, Bias kBias, class T = typename Shape::Element>
REGARD_NOINLINE void move_references(const T* bias, const OnlineStrip<T>& strip,
                                     const KeyRuns<Shape>& runs, const BlockWeights<T>& block,
                                     int begin) {
  constexpr int kWidth = Shape::kStripLanes, kRows = Shape::kRows;
  T* const tile = block.weights + begin * kWidth;
  for (int v = 0; v < strip.vectors; ++v) {
    const int lane = v * kLanes<T>;
    Vec<T> top = load(tile + lane);
    for (int r = 1; r < kRows; ++r) top = maximum<T>(top, load(tile + r * kWidth + lane));
    const MovedReference<T> moved =
        move_reference<T>(top, load(strip.state.reference + lane), load(strip.state.limit + lane));
    const Vec<T> factor = moved.factor;
    Vec<T> weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      T* at = tile + r * kWidth + lane;
      weights[r] = weight_of<T, kBias>(load<T>(at), moved.reference, bias, r * kWidth + lane);
      store(at, weights[r]);
    }
    store(strip.block_sum + lane, load(strip.block_sum + lane) * factor + sum_rows(weights));
    store(strip.state.sum + lane, load(strip.state.sum + lane) * factor);
    store(strip.state.reference + lane, moved.reference);
    store(strip.state.limit + lane, moved.limit);
    // At a strip's first keys there is nothing to rescale.
    if (!any<T>(moved.rescales)) continue;
    const auto rescale = [&](T* at) { store(at + lane, load<T>(at + lane) * factor); };
    for (int i = 0; i < runs.count; ++i)
      for (int k = runs.run[i].begin; k < runs.run[i].end && k < begin; ++k) {
        rescale(block.weights + k * kWidth);
        if (block.others) rescale(block.others + k * kWidth);
      }
    const std::int64_t rows = strip.is_fresh ? strip.sum_rows : strip.all_rows;
    for (std::int64_t row = 0; row < rows; ++row) rescale(strip.gathered + row * kWidth);
  }
}

// Processes one tile: scores, weights, and the block's running sum. `runs` contains this tile and
// the tiles before it. `bias` and `capped_scores` are as in score_tile.
template <class Shape, class Tile, class Product, class T = typename Shape::Element>
REGARD_INLINE void weights_tile(const Tile& tile, const ScoresOfBlock<T>& scores,
                                const Product& product, const T* bias, T* capped_scores,
                                const OnlineStrip<T>& strip, const KeyRuns<Shape>& runs,
                                const BlockWeights<T>& block) {
  constexpr int kWidth = Shape::kStripLanes, kRows = Shape::kRows, kVectors = Tile::kVectors;
  T* const weights_of_tile = block.weights + tile.begin * kWidth;
  Accumulators<T, kRows, kVectors> acc;
  score_tile<Shape>(acc, tile, scores, product, bias, capped_scores);
  bool exceeds = false;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    Vec<T> top = acc[0][v];
#pragma GCC unroll 16
    for (int r = 1; r < kRows; ++r) top = maximum<T>(top, acc[r][v]);
    exceeds |= any_greater(top, load(strip.state.limit + tile.lane + v * kLanes<T>));
  }
  if (__builtin_expect(exceeds, false)) {
    fill_unseen<Shape>(weights_of_tile, tile, strip.vectors, -kInfinity<T>);
    store_tile<T, kRows, kVectors>(acc, weights_of_tile + tile.lane, kWidth);
    move_references<Shape, Tile::kBias>(bias, strip, runs, block, tile.begin);
    return;
  }
  fill_unseen<Shape>(weights_of_tile, tile, strip.vectors, T(-0.0));
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int lane = tile.lane + v * kLanes<T>;
    const Vec<T> reference = load(strip.state.reference + lane);
    Vec<T> weights[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      weights[r] = weight_of<T, Tile::kBias>(acc[r][v], reference, bias, r * kWidth + lane);
      store(weights_of_tile + r * kWidth + lane, weights[r]);
    }
    T* block_sum = strip.block_sum + lane;
    store(block_sum, load<T>(block_sum) + sum_rows(weights));
  }
}

}  // namespace
}  // namespace regard
