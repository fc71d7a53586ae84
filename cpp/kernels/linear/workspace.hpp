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

  LinearWorkspace(const LinearProblem& problem, std::int64_t columns, void* memory) {
    constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
    const std::int64_t dim = problem.head_dim;
    const bool decays = problem.decay.data != nullptr, by_column = problem.decays_by_column;
    stride = round_up(dim, kLine) + kLine;
    const std::int64_t wide = by_column ? stride : 1;
    Arena arena(memory);
    const auto take = [&](std::int64_t count) { return arena.take<T>(count); };
    keys = take(kChunk * stride);
    ends = by_column ? take(kChunk * stride) : keys;
    rows = take((kChunk + kRoom) * stride);
    transposed = take((by_column ? kParts : 1) * dim * kScores);
    of_keys = take(kChunk * kScores);
    weights = take(kRoom * kScores);
    products = take((kChunk + kRoom) * kWidth);
    updates = take(kChunk * round_up(columns, kWidth));
    state = take(dim * round_up(columns, kWidth));
    beta = take(kChunk);
    state_decay = take(stride);
    sums = take(decays ? kChunk * wide : 0);
    rests = take(decays ? kChunk * wide : 0);
    pair_decays = take(decays && !by_column ? kChunk * kScores : 0);
    row_decays = take(kChunk * wide);
    near = take(by_column ? kChunk * stride : 0);
    scaled = take(by_column ? (kPart + Shape::kRows) * stride : 0);
    bytes = arena.used();
  }
};

// Calls body(column, vectors) for the panels of columns. The last panels are as wide as each other,
// because a panel of one vector is as slow as one of two.
template <class Shape, class Body>
REGARD_INLINE void for_panels(std::int64_t columns, Body body) {
  constexpr int kLaneCount = kLanes<typename Shape::Element>;
  for (std::int64_t column = 0; column < columns;) {
    const std::int64_t left = (columns - column + kLaneCount - 1) / kLaneCount;
    int vectors = Shape::kVectors;
    if (Shape::kTrims && (left < 3 || left == 4)) vectors = left == 1 ? 1 : 2;
    body(column, vectors);
    column += vectors * kLaneCount;
  }
}

// Calls body with the number of vectors as a constant.
template <class Shape, class Body>
REGARD_INLINE void with_vectors(int vectors, Body body) {
  static_assert(Shape::kVectors == 3, "the widths of a panel are named one by one");
  if constexpr (Shape::kTrims) {
    if (vectors == 1) return body(Constant<1>{});
    if (vectors == 2) return body(Constant<2>{});
  }
  body(Constant<Shape::kVectors>{});
}

}  // namespace
}  // namespace regard
