// The working memory of one thread for one piece of keys: the keys, the values and their gradients,
// and one band of queries with its gradients. Its size depends on head_dim and value_dim, but not
// on the lengths.
//
// A band consists of a few adjacent strips. The gradients of a block's keys are summed over all
// rows of the band in registers.
#pragma once

#include "../../problem/backward.hpp"
#include "../strips/products.hpp"
#include "../strips/setup.hpp"

namespace regard {
namespace {

// The keys of a batch entry are split into 1, 2, 4 or kMostChunks chunks of nearly the same size,
// so that two or four threads share one head evenly. The number of chunks doubles only while each
// chunk keeps more than this many keys.
constexpr std::int64_t kLeastChunkKeys = 192;
constexpr std::int64_t kMostChunks = 8;
constexpr std::int64_t kChunkUnit = 32;  // whole tiles and whole dropout counters

// The rows of an array that belong to a band, in whole vectors.
template <class T>
struct RowsOfBand {
  const T* from;
  std::ptrdiff_t stride;
  int are_finite;  // -1 until computed
};

template <class T>
struct BackwardStrip : StripRows<T> {
  T* queries;       // [head_dim][kStripLanes], as the products of scores read them
  T* grad_outputs;  // [value_dim][kStripLanes]
  RowLse<T> lse;    // [lanes]
  T* delta;         // [lanes]: D
  // [padded head_dim][kStripLanes], without the factor `scale`, then [kStripLanes] of slope_terms.
  // Stored in the workspace or in a partial.
  T* grad_queries;
  T* own_grad_queries;
  bool is_fresh;   // grad_queries holds nothing yet
  bool sees_some;  // sees a key of the piece by position; if not, only its rows are set
};

template <class Shape, class T = typename Shape::Element>
struct BackwardWorkspace {
  static constexpr int kBandStrips = Shape::kBandStrips;

  KeyInterval piece;
  TileRows<T> keys;  // of the piece
  TileRows<T> values;
  RowCopies<T> key_copies;
  RowCopies<T> value_copies;
  T* grad_keys;  // [piece keys][padded head_dim], without the factor `scale`
  T* grad_values;

  BackwardStrip<T> strips[kBandStrips];
  int strip_count;  // of the band
  int rows;
  RowsOfBand<T> query_rows;
  RowsOfBand<T> grad_output_rows;
  T* copied_query_rows;        // [band lanes][padded head_dim]
  T* copied_grad_output_rows;  // [band lanes][padded value_dim]
  T* copied_output_rows;       // likewise
  T* delta;                    // [band lanes]

  // For a block of keys and the strips of the band, [strip][block keys][kStripLanes].
  T* weights;        // P, later P after dropout
  T* grad_scores;    // dS
  T* score_factors;  // factors of dS: d(score) / d(product) times scale; null if all are 1
  // For a block of keys and a strip, [block keys][kStripLanes].
  T* bias;           // added to the scores
  T* capped_scores;  // of a tile
};

template <class Shape>
constexpr int kBandLanes = Shape::kBandStrips * Shape::kStripLanes;

// The padded length of rows whose columns are read in whole vectors and in whole tiles of columns.
template <class Shape>
constexpr std::int64_t padded_dim(std::int64_t dim) {
  constexpr int kWidth = kLanes<typename Shape::Element>;
  return round_up(dim, kWidth > Shape::kRows ? kWidth : Shape::kRows);
}

// The number of keys in a piece: keys, values and their gradients stay in L2 while the bands are
// processed. No bits depend on this number.
template <class Shape>
REGARD_INLINE std::int64_t piece_keys(const BackwardProblem& problem) {
  const AttentionProblem& forward = problem.forward;
  // The gradients of distances are summed piece by piece, so their pieces must not depend on L2.
  if (problem.grad_distance_bias.data) return 2 * Shape::kBlockKeys;
  const std::int64_t bytes_of_key =
      2 * (padded_dim<Shape>(forward.head_dim) + padded_dim<Shape>(forward.value_dim)) *
      static_cast<std::int64_t>(sizeof(typename Shape::Element));
  const std::int64_t share = forward.l2_bytes / 4 * 3, bytes = clamp(share, 0, Shape::kPieceBytes);
  const std::int64_t blocks = bytes / bytes_of_key / Shape::kBlockKeys;
  const std::int64_t most = (forward.kv_len + Shape::kBlockKeys - 1) / Shape::kBlockKeys;
  return clamp(blocks, 1, most > 1 ? most : 1) * Shape::kBlockKeys;
}

// Number of elements per lane of a strip's gradients of queries and slopes.
template <class Shape>
REGARD_INLINE std::int64_t partial_rows(const BackwardProblem& problem) {
  return padded_dim<Shape>(problem.forward.head_dim) + 1;
}

// Number of columns read from rows of keys or values: the unpadded number for rows read in place in
// whole tiles, and the padded number for copies, which are also read in whole vectors.
template <class Shape, class Factors>
REGARD_INLINE std::int64_t columns_read(const Operand& operand, std::int64_t columns) {
  const bool in_place = !Factors::kCopies && reads_in_place<typename Shape::Element>(operand) &&
                        columns % Shape::kRows == 0;
  return in_place ? columns : padded_dim<Shape>(columns);
}

template <class Shape, class Factors>
REGARD_INLINE bool copies_band_rows(const AttentionProblem& problem, const Operand& operand,
                                    std::int64_t columns) {
  return Factors::kCopies || !reads_in_place<typename Shape::Element>(operand) ||
         problem.heads != problem.kv_heads || columns != padded_dim<Shape>(columns);
}

// Lays out the workspace, as lay_out_forward does (../attention/forward_workspace.hpp).
template <class Shape, class Factors, class T = typename Shape::Element>
REGARD_NOINLINE std::int64_t lay_out_backward(const BackwardProblem& problem, void* memory) {
  const AttentionProblem& forward = problem.forward;
  constexpr std::int64_t kLanesOfBand = kBandLanes<Shape>, kLanesOfStrip = Shape::kStripLanes;
  const std::int64_t head_dim = padded_dim<Shape>(forward.head_dim);
  const std::int64_t value_dim = padded_dim<Shape>(forward.value_dim);
  const std::int64_t keys = piece_keys<Shape>(problem);
  Arena arena(memory);
  auto* const place = arena.take<BackwardWorkspace<Shape>>(1);
  BackwardWorkspace<Shape> work{};
  const auto take_copies = [&](const Operand& operand, std::int64_t dim, std::int64_t padded) {
    const bool in_place = !Factors::kCopies && reads_in_place<T>(operand) &&
                          columns_read<Shape, Factors>(operand, dim) == dim;
    return RowCopies<T>{in_place ? nullptr : arena.take<T>(keys * padded),
                        arena.take<T>(Shape::kRows * padded), nullptr};
  };
  work.key_copies = take_copies(forward.key, forward.head_dim, head_dim);
  work.value_copies = take_copies(forward.value, forward.value_dim, value_dim);
  work.grad_keys = arena.take<T>(keys * head_dim);
  work.grad_values = arena.take<T>(keys * value_dim);
  work.delta = arena.take<T>(kLanesOfBand);
  for (int s = 0; s < Shape::kBandStrips; ++s) {
    BackwardStrip<T>& strip = work.strips[s];
    take_rows(forward, kLanesOfStrip, arena, strip);
    strip.queries = arena.take<T>(head_dim * kLanesOfStrip);
    strip.grad_outputs = arena.take<T>(value_dim * kLanesOfStrip);
    strip.lse = {arena.take<T>(kLanesOfStrip), arena.take<T>(kLanesOfStrip)};
    strip.delta = work.delta + s * kLanesOfStrip;
    strip.own_grad_queries = arena.take<T>(partial_rows<Shape>(problem) * kLanesOfStrip);
  }
  const auto take_rows_of = [&](const Operand& operand, std::int64_t dim, std::int64_t padded) {
    return copies_band_rows<Shape, Factors>(forward, operand, dim)
               ? arena.take<T>(kLanesOfBand * padded)
               : nullptr;
  };
  work.copied_query_rows = take_rows_of(forward.query, forward.head_dim, head_dim);
  work.copied_grad_output_rows = take_rows_of(problem.grad_output, forward.value_dim, value_dim);
  work.copied_output_rows = take_rows_of(forward.output, forward.value_dim, value_dim);
  work.weights = arena.take<T>(Shape::kBlockKeys * kLanesOfBand);
  work.grad_scores = arena.take<T>(Shape::kBlockKeys * kLanesOfBand);
  if (has_softcap(forward) || forward.score_function || forward.scales.data)
    work.score_factors = arena.take<T>(Shape::kBlockKeys * kLanesOfBand);
  work.bias = arena.take<T>(Shape::kBlockKeys * kLanesOfStrip);
  work.capped_scores = arena.take<T>(Shape::kRows * kLanesOfStrip);
  if (place) *place = work;
  return arena.used();
}

}  // namespace
}  // namespace regard
