// The memory of a task of linear attention, and the places of its panels.
#pragma once

#include "../../problem/linear.hpp"
#include "../strips/arena.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

constexpr int kChunk = static_cast<int>(kChunkTokens);
// Decays of each column of the keys are computed relative to the start of such a part of a chunk.
constexpr int kPart = 16;
constexpr int kParts = kChunk / kPart;

// Arrays of rows by dimension have rows that are `stride` apart: whole cache lines, and one more,
// so that a column of the rows is in many sets of L1. Rows of scores are kScores apart.
template <class Shape>
struct LinearWorkspace {
  using T = typename Shape::Element;
  static constexpr int kWidth = Shape::kStripLanes;
  static constexpr std::int64_t kScores = round_up(kChunk, kWidth);
  static constexpr std::int64_t kRoom = kChunk + Shape::kRows;  // the last tile of rows is padded

  std::int64_t stride;
  T* keys;  // [kChunk][stride]
  T* ends;  // keys, decayed to the end of the chunk; may be `keys` itself
  T* rows;  // [kChunk + kRoom][stride]: keys if there is a beta, and then queries, both decayed
  T* transposed;   // [head_dim][kScores]: keys; with decays by column, kParts of them
  T* of_keys;      // [kChunk][kScores]: the factors by which a key changes later ones
  T* weights;      // [kRoom][kScores]: of queries
  T* products;     // [kChunk + kRoom][lanes of a panel]: rows times state
  T* updates;      // for each panel, [kChunk][lanes]: what is added to the state at the keys
  T* state;        // for each panel, [head_dim][lanes]
  T* beta;         // [kChunk]
  T* state_decay;  // [head_dim]: from the start of a chunk to its end

  // Sums of decays from the start of the chunk up to and including a token, as unevaluated sums of
  // two numbers: [kChunk], or [kChunk][stride] by column.
  T* sums;
  T* rests;
  T* pair_decays;  // [kChunk][kScores]
  T* row_decays;   // [kChunk], or [kChunk][stride] by column: from the start of the chunk
  T* near;         // [kChunk][stride]: by column, from the start of the part
  T* scaled;       // [kPart + kRows][stride]

  std::int64_t bytes;

  static constexpr std::int64_t stride_of(std::int64_t columns) {
    constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
    return round_up(columns, kLine) + kLine;  // panels of two vectors end before it
  }

  LinearWorkspace(const LinearProblem& problem, std::int64_t columns, void* memory) {
    const std::int64_t dim = problem.head_dim;
    const bool decays = problem.decay.data != nullptr, by_column = problem.decays_by_column;
    stride = stride_of(dim);
    const std::int64_t wide = by_column ? stride : 1;
    const std::int64_t all_columns = round_up(columns, kWidth) + kWidth;
    const struct {
      T** array;
      std::int64_t count;
    } arrays[] = {
        {&keys, kChunk * stride},
        {&ends, by_column ? kChunk * stride : 0},
        {&rows, (kChunk + kRoom) * stride},
        {&transposed, (by_column ? kParts : 1) * dim * kScores},
        {&of_keys, kChunk * kScores},
        {&weights, kRoom * kScores},
        {&products, (kChunk + kRoom) * kWidth},
        {&updates, kChunk * all_columns},
        {&state, dim * all_columns},
        {&beta, kChunk},
        {&state_decay, stride},
        {&sums, decays ? kChunk * wide : 0},
        {&rests, decays ? kChunk * wide : 0},
        {&pair_decays, decays && !by_column ? kChunk * kScores : 0},
        {&row_decays, kChunk * wide},
        {&near, by_column ? kChunk * stride : 0},
        {&scaled, by_column ? (kPart + Shape::kRows) * stride : 0},
    };
    Arena arena(memory);
    for (const auto& each : arrays) *each.array = arena.take<T>(each.count);
    if (!by_column) ends = keys;
    bytes = arena.used();
  }
};

// Calls body(column, vectors) for the panels of columns, which have two or three vectors: a single
// one is no faster than two. In float64, every panel has two.
template <class Shape, class Body>
REGARD_INLINE void for_panels(std::int64_t columns, Body body) {
  constexpr int kLaneCount = kLanes<typename Shape::Element>;
  for (std::int64_t column = 0; column < columns;) {
    const std::int64_t left = (columns - column + kLaneCount - 1) / kLaneCount;
    const int vectors = Shape::kTrims && left > 2 && left != 4 ? 3 : 2;
    body(column, vectors);
    column += vectors * kLaneCount;
  }
}

// Calls body with the number of vectors as a constant.
template <class Shape, class Body>
REGARD_INLINE void with_vectors(int vectors, Body body) {
  if constexpr (Shape::kTrims)
    if (vectors == 3) return body(Constant<3>{});
  body(Constant<2>{});
}

}  // namespace
}  // namespace regard
