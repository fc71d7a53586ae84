// The rows of a strip, one lane per row, and their positions among the keys: the data of a strip
// that visibility, masks and scores need in all kernels.
#pragma once

#include "../../problem/attention.hpp"
#include "../../simd/vec.hpp"
#include "../tile_shape.hpp"

namespace regard {
namespace {

// Neighboring lanes with the same spans of a sparse mask.
struct MaskRun {
  const MaskSpan* begin;
  const MaskSpan* end;
  const MaskSpan* last;  // found by the previous search
  int end_lane;
};

template <class T>
struct StripRows {
  std::int64_t first_row;  // among the kv head's rows, as in AttentionTask
  int rows;                // lanes in use
  int vectors;             // lanes / kLanes<T>, of the kStripLanes lanes of each row of its arrays
  // By position (window, causality, the array's end), keys outside `seen` are hidden from every
  // lane, and keys inside `shared` are hidden from no lane.
  SeenKeys seen;
  SeenKeys shared;
  KeyInterval keep_first;  // each lane sees these keys up to its end_key
  // Each lane's query among the keys: its position, and the keys that it sees by position.
  std::int64_t* positions;
  std::int64_t* first_key;
  std::int64_t* end_key;
  T* scales;  // of products
  T* slopes;  // of ALiBi; null without ALiBi
  // Transformations of a score before anything is added to it (score_tile); null if not needed.
  T* mean_scores;                    // scores of the mean without which keys are stored
  T* softcaps;                       // 0 if a head has none
  std::int64_t* function_positions;  // as passed to the score function
  // For a sparse mask; null without one.
  MaskRun* mask_runs;
  std::int64_t* mask_queries;  // each lane's query, in its row of the mask
  int mask_run_count;
  // Results of next_block_by_mask: for the block found before, and for the last one.
  std::int64_t mask_here;
  std::int64_t mask_next;
};

// Tasks begin at multiples of this many rows. If a mask is not broadcast over queries, no strip
// crosses such a multiple.
template <class Shape>
REGARD_INLINE std::int64_t row_unit(const AttentionProblem& problem) {
  // With scattered keys, a strip that held heads of two queries would compute the keys of both.
  const std::int64_t group = problem.kv_heads ? problem.heads / problem.kv_heads : 0;
  if (problem.sparse_mask && problem.sparse_mask->is_scattered &&
      problem.sparse_mask->query_stride != 0 && group > 0 &&
      group % kLanes<typename Shape::Element> == 0)
    return group;
  const auto has_rows = [](const Operand& mask) { return mask.data && mask.row_stride != 0; };
  const bool is_sparse = problem.sparse_mask && problem.sparse_mask->query_stride != 0;
  return has_rows(problem.mask) || has_rows(problem.bias) || is_sparse ? Shape::kMaskRows
                                                                       : Shape::kStripLanes;
}

template <class Shape>
REGARD_INLINE int strips_of_unit(const AttentionProblem& problem) {
  return static_cast<int>(row_unit<Shape>(problem) + Shape::kStripLanes - 1) / Shape::kStripLanes;
}

// Calls body(first_row, rows, vectors) for each strip of a task. The strips of a unit have about
// equal sizes. The last strip never has only one vector if the strip before it could give it
// another: the tile of one vector has too few sums to hide the latency of a multiply-add, and two
// strips of two vectors take less time than a strip of three and a strip of one.
template <class Shape, class Body>
REGARD_INLINE void for_strips(const AttentionProblem& problem, std::int64_t task_rows, Body body) {
  constexpr int kWidth = kLanes<typename Shape::Element>;
  int strips_left = 0, vectors_left = 0;  // in the unit
  for (std::int64_t row = 0; row < task_rows;) {
    if (strips_left == 0) {
      strips_left = strips_of_unit<Shape>(problem);
      vectors_left = static_cast<int>(row_unit<Shape>(problem)) / kWidth;
    }
    int most = (vectors_left + strips_left - 1) / strips_left;
    if (!Shape::kTrims)  // strips of two vectors would compute three
      most = vectors_left < Shape::kVectors ? vectors_left : Shape::kVectors;
    const std::int64_t left = task_rows - row;
    if (Shape::kTrims && most == 3 && left > 3 * kWidth && left <= 4 * kWidth) {
      most = strips_left = 2;
      vectors_left = 4;
    }
    const int rows = left < most * kWidth ? static_cast<int>(left) : most * kWidth;
    body(row, rows, Shape::vectors_for(rows));
    row += most * kWidth;
    vectors_left -= most;
    --strips_left;
  }
}

// Calls `body` with the number of vectors that a tile computes as a constant.
template <class Shape, class Body>
REGARD_INLINE void for_vectors(int vectors, Body body) {
  static_assert(Shape::kVectors == 3, "all numbers are listed");
  if (vectors == 1) return body(Constant<1>{});
  if constexpr (Shape::kTrims) {
    if (vectors == 2) return body(Constant<2>{});
  }
  body(Constant<3>{});
}

// A range of a strip's vectors.
struct VectorRange {
  int begin;
  int end;
};

// Calls `body` with the begin and the end of a range as constants. The range may be larger than
// `range`, because the weights of other vectors change no sum.
template <class Shape, class Body>
REGARD_INLINE void for_range(const VectorRange& range, Body body) {
  static_assert(Shape::kVectors == 3, "all ranges that begin or end with a strip are listed");
  if (range.end == 1) return body(Constant<0>{}, Constant<1>{});
  if constexpr (Shape::kTrims) {
    if (range.end == 2) return body(Constant<0>{}, Constant<2>{});
    if (range.begin == 1) return body(Constant<1>{}, Constant<3>{});
    if (range.begin == 2) return body(Constant<2>{}, Constant<3>{});
  }
  body(Constant<0>{}, Constant<3>{});
}

// The keys [begin, end) of a block, fewer than the rows of a tile at the end of the array, and the
// first of a strip's lanes that are computed.
struct TileKeys {
  int begin;
  int end;
  int lane;
};

// Pointers to one column of the strip's rows.
template <class E, class Data, class T>
REGARD_INLINE void row_pointers(const AttentionProblem& problem, const Operand& operand, Data* data,
                                const StripRows<T>& strip, std::int64_t column, E** rows) {
  const std::int64_t group = problem.heads / problem.kv_heads;
  if (group == 1) {
    E* first = static_cast<E*>(data) + strip.first_row * operand.row_stride +
               column * operand.column_stride;
    for (int lane = 0; lane < strip.rows; ++lane) rows[lane] = first + lane * operand.row_stride;
    return;
  }
  std::int64_t query = strip.first_row / group, head = strip.first_row % group;
  for (int lane = 0; lane < strip.rows; ++lane) {
    rows[lane] = static_cast<E*>(data) + query * operand.row_stride + head * operand.head_stride +
                 column * operand.column_stride;
    if (++head == group) {
      head = 0;
      ++query;
    }
  }
}

// Finds every lane's row of a mask, bool or float, starting at a key. Lanes beyond the last row
// repeat it.
template <class M, class T>
REGARD_INLINE void mask_rows(const AttentionProblem& problem, const Operand& mask, const void* data,
                             const StripRows<T>& strip, std::int64_t key, const M** rows) {
  row_pointers(problem, mask, data, strip, key, rows);
  for (int lane = strip.rows; lane < strip.vectors * kLanes<T>; ++lane) rows[lane] = rows[lane - 1];
}

// Whether all lanes share one row of the mask, as in a mask that depends only on keys.
REGARD_INLINE bool lanes_share_a_row(const AttentionProblem& problem, const Operand& mask) {
  return mask.row_stride == 0 && (mask.head_stride == 0 || problem.heads == problem.kv_heads);
}

}  // namespace
}  // namespace regard
