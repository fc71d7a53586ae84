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

// to[i] = the row of `key`, of padded_columns, with zeros after the last row to a whole tile.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE void gather_row(const KvRows& rows, std::int64_t key, int i, int count,
                              std::int64_t columns, std::int64_t padded_columns,
                              const RowCopies<T>& to) {
  const int padded = i + 1 == count ? static_cast<int>(round_up(count, Shape::kRows)) - i : 1;
  copy_rows(rows, key, 1, columns, to.rows + i * padded_columns, padded, padded_columns);
  if (scale_products(rows)) copy_scales(rows, key, 1, to.scales + i, padded);
}

// Gathers keys, computes their products, and prefetches their values.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void score_gathered(const AttentionProblem& problem, const AttentionTask& task,
                                    const ForwardStrip<T>& strip, const RowCopies<T>& keys) {
  constexpr int kRows = Shape::kRows, kPitch = Shape::kStripLanes;
  const GatheredKeys& gathered = strip.gathered;
  const KvRows rows = keys_of(problem, task), values = values_of(problem, task);
  for_gathered(rows, problem.head_dim, gathered, [&](int i) {
    gather_row<Shape>(rows, gathered.key[i], i, gathered.count, problem.head_dim, problem.head_dim,
                      keys);
    if (values.data != rows.data) prefetch_row(values, gathered.key[i], problem.value_dim);
  });
  for_vectors<Shape>(strip.vectors, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    for (int first = 0; first < gathered.count; first += kRows) {
      const RowProduct<T, kPitch> product{keys.rows + first * problem.head_dim, problem.head_dim,
                                          scale_products(rows) ? keys.scales + first : nullptr,
                                          strip.queries, problem.head_dim};
      Accumulators<T, kRows, kVectors> acc;
      product.template multiply<kRows, kVectors>(acc, 0);
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

// sums[column][lane] += the terms of `count` keys, or = if the sums are fresh, as add_columns does
// for one run. The number of vectors is selected once: for a few keys, selecting it for
// each tile would take as long as the products.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void add_few_columns(const KeyTerm<T>& term, int count, std::int64_t columns,
                                     int vectors, bool is_fresh, T* sums) {
  constexpr int kRows = Shape::kRows, kPitch = Shape::kStripLanes;
  for_vectors<Shape>(vectors, [&](auto chosen) {
    constexpr int kVectors = decltype(chosen)::value;
    T* to = sums;
    for (std::int64_t column = 0; column < columns; column += kRows, to += kRows * kPitch) {
      Accumulators<T, kRows, kVectors> acc;
      clear<T, kRows, kVectors>(acc);
      multiply_columns<T, kRows, kVectors, false>(acc, term.rows + column, term.row_stride,
                                                  term.block, kPitch, count);
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
