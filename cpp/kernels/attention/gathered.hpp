// The products and values of the keys that a strip gathers (../strips/scattered.hpp).
#pragma once

#include "../strips/products.hpp"
#include "../strips/scores.hpp"
#include "forward_workspace.hpp"

namespace regard {
namespace {

// A block's gathered keys in tiles that are not hidden.
template <class Shape>
struct GatheredBlock {
  int count = 0;
  int from[Shape::kBlockKeys];  // index in the strip's list
  int at[Shape::kBlockKeys];    // place in the block
};

template <class Shape>
REGARD_NOINLINE GatheredBlock<Shape> gathered_block(std::int64_t block_begin,
                                                    const SeenTiles<Shape>& tiles,
                                                    GatheredKeys& gathered) {
  GatheredBlock<Shape> own;
  const KeyInterval listed = next_gathered_block<Shape>(block_begin, gathered);
  for (auto i = static_cast<int>(listed.begin); i < listed.end; ++i) {
    const auto at = static_cast<int>(gathered.key[i] - block_begin);
    if (at >= tiles.end) break;
    if (tiles.all ? at < tiles.begin : tiles.kinds[at / Shape::kRows] == TileKind::hidden) continue;
    own.from[own.count] = i;
    own.at[own.count++] = at;
  }
  return own;
}

// Whether rows are read in place: a tile of them must not read beyond a row.
template <class T>
REGARD_INLINE bool gathers_in_place(const KvRows& rows, std::int64_t columns, int multiple) {
  return is_stored_as<T>(rows.operand.element) && rows.operand.column_stride == 1 &&
         columns % multiple == 0;
}

// The row of a key, in place or as row `i` of the copies.
template <class T>
REGARD_INLINE const T* row_of_key(const KvRows& rows, std::int64_t key, bool in_place, int i,
                                  std::int64_t columns, std::int64_t padded_columns,
                                  const RowCopies<T>& copies) {
  if (in_place) return static_cast<const T*>(row_at(rows, key));
  T* const copy = copies.rows + i * padded_columns;
  copy_rows(rows, key, 1, columns, copy, 1, padded_columns);
  if (scale_products(rows)) copy_scales(rows, key, 1, copies.scales + i, 1);
  return copy;
}

// Computes the products of gathered keys, tile by tile, and prefetches their values and the keys of
// the next tile.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void score_gathered(const AttentionProblem& problem, const AttentionTask& task,
                                    const ForwardStrip<T>& strip, const RowCopies<T>& copies) {
  constexpr int kRows = Shape::kRows, kPitch = Shape::kStripLanes;
  const std::int64_t* const keys = strip.gathered.key;
  const int count = strip.gathered.count;
  const KvRows rows = keys_of(problem, task), values = values_of(problem, task);
  const std::int64_t head_dim = problem.head_dim;
  const bool in_place = gathers_in_place<T>(rows, head_dim, 1);
  for_vectors<Shape>(strip.vectors, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    for (int i = 0; i < kRows && i < count; ++i) prefetch_row(rows, keys[i], head_dim);
    for (int first = 0; first < count; first += kRows) {
      const T* tile[kRows];
      for (int r = 0; r < kRows; ++r) {
        const int i = first + r;
        if (i + kRows < count) prefetch_row(rows, keys[i + kRows], head_dim);
        if (i < count && values.data != rows.data) prefetch_row(values, keys[i], problem.value_dim);
        tile[r] = i < count ? row_of_key(rows, keys[i], in_place, r, head_dim, head_dim, copies)
                            : tile[r - 1];
      }
      Accumulators<T, kRows, kVectors> acc;
      clear<T, kRows, kVectors>(acc);
      multiply_rows_at<T, kRows, kVectors>(acc, tile, strip.queries, kPitch, head_dim);
      if (scale_products(rows))
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v)
            acc[r][v] = acc[r][v] * broadcast(copies.scales[first + r < count ? r : 0]);
      store_tile<T, kRows, kVectors>(acc, strip.products + first * kPitch, kPitch);
    }
  });
}

// products[key] = the products of the gathered keys at their places in the block; others are 0.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void place_products(const ForwardStrip<T>& strip, const GatheredBlock<Shape>& own,
                                    int end, T* products) {
  constexpr int kPitch = Shape::kStripLanes;
  for (std::int64_t i = 0; i < round_up(end, Shape::kRows) * kPitch; i += kLanes<T>)
    store(products + i, Vec<T>{});
  for (int i = 0; i < own.count; ++i)
    for (int v = 0; v < strip.vectors * kLanes<T>; v += kLanes<T>)
      store(products + own.at[i] * kPitch + v, load<T>(strip.products + own.from[i] * kPitch + v));
}

// sums[column][lane] += the sums over keys of rows[key][column] weights[key][lane], or = if the sums
// are fresh. With kSelect, terms of hidden keys are skipped, as in multiply_columns.
template <class Shape, bool kSelect, class T = typename Shape::Element>
REGARD_NOINLINE void add_gathered_columns(const T* const* rows, int count, const T* weights,
                                          std::int64_t columns, int vectors, bool is_fresh,
                                          T* sums) {
  constexpr int kRows = Shape::kRows, kPitch = Shape::kStripLanes;
  for_vectors<Shape>(vectors, [&](auto chosen) {
    constexpr int kVectors = decltype(chosen)::value;
    T* to = sums;
    for (std::int64_t column = 0; column < columns; column += kRows, to += kRows * kPitch) {
      Accumulators<T, kRows, kVectors> acc;
      clear<T, kRows, kVectors>(acc);
      for (int k = 0; k < count; ++k)
        multiply_columns<T, kRows, kVectors, kSelect>(acc, rows[k] + column, 0,
                                                      weights + k * kPitch, kPitch, 1);
      if (is_fresh)
        store_tile<T, kRows, kVectors>(acc, to, kPitch);
      else
        add_tile<T, kRows, kVectors>(acc, to, to, kPitch);
    }
  });
}

// Moves the weights of the gathered keys side by side.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void gather_weights(const GatheredBlock<Shape>& own, int vectors, T* weights) {
  constexpr int kPitch = Shape::kStripLanes;
  for (int i = 0; i < own.count; ++i)
    for (int v = 0; v < vectors * kLanes<T>; v += kLanes<T>)
      store(weights + i * kPitch + v, load<T>(weights + own.at[i] * kPitch + v));
}

}  // namespace
}  // namespace regard
