// The products of a strip and a block of keys, for kernels that keep a block's weights in memory: scores of the keys
// that the strip sees, and sums over these keys.
//
// Code takes time to compile in proportion to its volume, and products are most of it. So these are functions of their
// own, one for each number of a strip's vectors, and all that stands around them has this number at run time.
#pragma once

#include "../micro_kernel.hpp"
#include "block_rows.hpp"
#include "mask_tiles.hpp"

namespace regard {
namespace {

// What a strip sees of a block.
template <class Shape>
struct KeyRuns {
  KeyRun run[Shape::kBlockKeys / Shape::kRows];
  int count = 0;
  bool hide_something = false;  // of a tile of theirs some lane does not see some key
};

// Calls body(first key, end, kind) for the tiles of a block that are not hidden. Keys from `seen` on are.
template <class Shape, class Body>
REGARD_INLINE void for_tiles(const TileKind* kinds, int seen, Body body) {
  for (int k = 0; k < seen; k += Shape::kRows) {
    const TileKind kind = kinds[k / Shape::kRows];
    if (kind != TileKind::hidden) body(k, k + Shape::kRows < seen ? k + Shape::kRows : seen, kind);
  }
}

template <class Shape>
REGARD_NOINLINE KeyRuns<Shape> runs_of(const TileKind* kinds, int seen) {
  KeyRuns<Shape> runs;
  for_tiles<Shape>(kinds, seen, [&](int begin, int end, TileKind kind) {
    if (runs.count > 0 && runs.run[runs.count - 1].end == begin)
      runs.run[runs.count - 1].end = end;
    else
      runs.run[runs.count++] = {begin, end};
    runs.hide_something |= kind == TileKind::hiding;
  });
  return runs;
}

template <class Shape, int kVectors, class T = typename Shape::Element>
REGARD_NOINLINE void multiply_keys_of(const KeyRuns<Shape>& runs, BlockRows<T> rows, const T* lanes,
                                      std::int64_t depth, bool goes_on, T* block) {
  constexpr int kWidth = kVectors * kLanes<T>, kRows = Shape::kRows;
  for (int i = 0; i < runs.count; ++i)
    for (int k = runs.run[i].begin; k < runs.run[i].end; k += kRows) {
      T* const tile = block + k * kWidth;
      Accumulators<T, kRows, kVectors> acc;
      if (goes_on)
        load_tile<T, kRows, kVectors>(acc, tile);
      else
        clear<T, kRows, kVectors>(acc);
      multiply_rows<T, kRows, kVectors>(acc, rows.from + k * rows.stride, rows.stride, lanes, kWidth, depth);
      store_tile<T, kRows, kVectors>(acc, tile);
    }
}

// block[key][lane] = sum over k < depth of rows[key][k] lanes[k][lane], for the runs' tiles. One that goes on begins
// with what the block holds.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE void multiply_keys(int vectors, const KeyRuns<Shape>& runs, BlockRows<T> rows, const T* lanes,
                                 std::int64_t depth, bool goes_on, T* block) {
  for_vectors<Shape::kVectors>(vectors, [&](auto constant) {
    multiply_keys_of<Shape, constant.value>(runs, rows, lanes, depth, goes_on, block);
  });
}

// Of a sum over keys: rows[key][column] block[key][lane].
template <class T>
struct KeyTerm {
  const T* block;
  BlockRows<T> rows;
};

template <class Shape, int kVectors, bool kSelect, class T = typename Shape::Element>
REGARD_NOINLINE void add_columns_of(const KeyRuns<Shape>& runs, const KeyTerm<T>* terms, int count,
                                    std::int64_t columns, bool is_fresh, T* sums) {
  constexpr int kWidth = kVectors * kLanes<T>, kRows = Shape::kRows;
  for (std::int64_t column = 0; column < columns; column += kRows) {
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    for (const KeyTerm<T>* term = terms; term < terms + count; ++term)
      for (int i = 0; i < runs.count; ++i) {
        const KeyRun& run = runs.run[i];
        multiply_columns<T, kRows, kVectors, kSelect>(
            acc, term->rows.from + run.begin * term->rows.stride + column, term->rows.stride,
            term->block + run.begin * kWidth, kWidth, run.end - run.begin);
      }
    T* const to = sums + column * kWidth;
    if (is_fresh)
      store_tile<T, kRows, kVectors>(acc, to);
    else
      add_tile<T, kRows, kVectors>(acc, to, kWidth);
  }
}

// sums[column][lane] += the terms of the runs' keys, summed term by term, or = where they are fresh. `selects` leaves
// out what is hidden, as multiply_columns does.
template <class Shape, class T = typename Shape::Element>
REGARD_INLINE void add_columns(int vectors, bool selects, const KeyRuns<Shape>& runs, const KeyTerm<T>* terms,
                               int count, std::int64_t columns, bool is_fresh, T* sums) {
  for_vectors<Shape::kVectors>(vectors, [&](auto constant) {
    if (selects)
      add_columns_of<Shape, constant.value, true>(runs, terms, count, columns, is_fresh, sums);
    else
      add_columns_of<Shape, constant.value, false>(runs, terms, count, columns, is_fresh, sums);
  });
}

}  // namespace
}  // namespace regard
