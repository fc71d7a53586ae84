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
  const T* block;  // [block keys][kStripLanes]
  const T* rows;
  std::ptrdiff_t row_stride;
};

// Makes add_columns multiply the keys of a run one by one, for the strip's vectors from kBegin to
// before kEnd.
struct MultiplyKeys {
  template <class Shape, bool kSelect, int kBegin, int kEnd, class T = typename Shape::Element>
  REGARD_INLINE void add(Accumulators<T, Shape::kRows, Shape::kVectors>& acc,
                         const KeyTerm<T>& term, std::int64_t column, const KeyRun& run) {
    constexpr int kPitch = Shape::kStripLanes;
    multiply_columns<T, Shape::kRows, Shape::kVectors, kSelect, kBegin, kEnd>(
        acc, term.rows + run.begin * term.row_stride + column, term.row_stride,
        term.block + run.begin * kPitch, kPitch, run.end - run.begin);
  }
};

template <class Multiply, class Shape, bool kSelect, class T = typename Shape::Element>
REGARD_NOINLINE void add_columns_of(const KeyRuns<Shape>& runs, const KeyTerm<T>* terms, int count,
                                    std::int64_t columns, int vectors, bool is_fresh, T* sums) {
  constexpr int kRows = Shape::kRows, kVectors = Shape::kVectors, kPitch = Shape::kStripLanes;
  for (std::int64_t column = 0; column < columns; column += kRows, sums += kRows * kPitch) {
    Accumulators<T, kRows, kVectors> acc;
    clear<T, kRows, kVectors>(acc);
    for (const KeyTerm<T>* term = terms; term < terms + count; ++term)
      for (int i = 0; i < runs.count; ++i) {
        const KeyRun& run = runs.run[i];
        for_range<Shape>(run.vectors, [&](auto begin, auto end) {
          Multiply::template add<Shape, kSelect, begin.value, end.value>(acc, *term, column, run);
        });
      }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      if (v >= vectors) break;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        T* const at = sums + r * kPitch + v * kLanes<T>;
        store(at, is_fresh ? acc[r][v] : load<T>(at) + acc[r][v]);
      }
    }
  }
}

// sums[column][lane] += the terms of the runs' keys, or = if nothing has been written to the sums
// yet, for a strip of `vectors` vectors. Terms are first summed over a block and then added once,
// which keeps the error close to the error of a blocked matrix product. If `selects`, terms of
// hidden keys are skipped, as in multiply_columns.
template <class Shape, class Multiply = MultiplyKeys, class T = typename Shape::Element>
REGARD_INLINE void add_columns(bool selects, const KeyRuns<Shape>& runs, const KeyTerm<T>* terms,
                               int count, std::int64_t columns, int vectors, bool is_fresh,
                               T* sums) {
  if (selects)
    add_columns_of<Multiply, Shape, true>(runs, terms, count, columns, vectors, is_fresh, sums);
  else
    add_columns_of<Multiply, Shape, false>(runs, terms, count, columns, vectors, is_fresh, sums);
}

}  // namespace
}  // namespace regard
