// Sums over keys: products of a block of numbers, one per key and lane, and rows of keys or values.
#pragma once

#include "../micro_kernel.hpp"
#include "tile_rows.hpp"
#include "tiles.hpp"

namespace regard {
namespace {

// rows[key][column] block[key][lane]
template <class T>
struct KeyTerm {
  const T* block;  // [block keys][kPitch vectors]
  const T* rows;
  std::ptrdiff_t row_stride;
};

// Makes add_columns multiply the keys of a run one by one.
struct MultiplyKeys {
  template <int kPitch, bool kSelect, int kBegin, int kEnd, class T, int kRows, int kVectors>
  REGARD_INLINE void add(Accumulators<T, kRows, kVectors>& acc, const KeyTerm<T>& term,
                         std::int64_t column, const KeyRun& run) {
    constexpr int kWidth = kPitch * kLanes<T>;
    multiply_columns<T, kRows, kVectors, kSelect, kBegin, kEnd>(
        acc, term.rows + run.begin * term.row_stride + column, term.row_stride,
        term.block + run.begin * kWidth, kWidth, run.end - run.begin);
  }
};

template <class Multiply, class Shape, int kVectors, int kPitch, bool kSelect,
          class T = typename Shape::Element>
REGARD_NOINLINE void add_columns_of(const KeyRuns<Shape>& runs, const KeyTerm<T>* terms, int count,
                                    std::int64_t columns, bool is_fresh, T* sums) {
  constexpr int kRows = Shape::kRows;
  for (std::int64_t column = 0; column < columns; column += kRows) {
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    for (const KeyTerm<T>* term = terms; term < terms + count; ++term)
      for (int i = 0; i < runs.count; ++i) {
        const KeyRun& run = runs.run[i];
        for_range<kVectors>(run.vectors, [&](auto begin, auto end) {
          Multiply::template add<kPitch, kSelect, begin.value, end.value>(acc, *term, column, run);
        });
      }
    T* const to = sums + column * kVectors * kLanes<T>;
    if (is_fresh)
      store_tile<T, kRows, kVectors>(acc, to);
    else
      add_tile<T, kRows, kVectors>(acc, to, kVectors * kLanes<T>);
  }
}

// sums[column][lane] += the terms of the runs' keys, or = if nothing has been written to the sums
// yet. Terms are first summed over a block and then added once, which keeps the error close to the
// error of a blocked matrix product. If `selects`, terms of hidden keys are skipped, as in
// multiply_columns.
template <class Shape, int kVectors, int kPitch = kVectors, class Multiply = MultiplyKeys,
          class T = typename Shape::Element>
REGARD_INLINE void add_columns(bool selects, const KeyRuns<Shape>& runs, const KeyTerm<T>* terms,
                               int count, std::int64_t columns, bool is_fresh, T* sums) {
  if (selects)
    add_columns_of<Multiply, Shape, kVectors, kPitch, true>(runs, terms, count, columns, is_fresh,
                                                            sums);
  else
    add_columns_of<Multiply, Shape, kVectors, kPitch, false>(runs, terms, count, columns, is_fresh,
                                                             sums);
}

}  // namespace
}  // namespace regard
