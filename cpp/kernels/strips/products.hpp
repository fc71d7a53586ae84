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

// Makes add_columns multiply the keys of a run one by one.
struct MultiplyKeys {
  template <class Shape, bool kSelect, int kVectors, class T = typename Shape::Element>
  REGARD_INLINE void add(Accumulators<T, Shape::kRows, kVectors>& acc, const KeyTerm<T>& term,
                         std::int64_t column, const KeyRun& run, int lane) {
    constexpr int kPitch = Shape::kStripLanes;
    multiply_columns<T, Shape::kRows, kVectors, kSelect>(
        acc, term.rows + run.begin * term.row_stride + column, term.row_stride,
        term.block + run.begin * kPitch + lane, kPitch, run.end - run.begin);
  }
};

// to = from + the terms of a run's keys + before, for a tile of columns. A null `from` or `before`
// is 0.
template <class Multiply, class Shape, bool kSelect, int kVectors,
          class T = typename Shape::Element>
REGARD_NOINLINE void add_run(const KeyTerm<T>& term, std::int64_t column, const KeyRun& run,
                             const T* from, const T* before, T* to) {
  constexpr int kRows = Shape::kRows, kPitch = Shape::kStripLanes;
  const int lane = run.vectors.begin * kLanes<T>;
  Accumulators<T, kRows, kVectors> acc;
  if (from)
    load_tile<T, kRows, kVectors>(acc, from + lane, kPitch);
  else
    clear<T, kRows, kVectors>(acc);
  Multiply::template add<Shape, kSelect, kVectors>(acc, term, column, run, lane);
  if (before)
    add_tile<T, kRows, kVectors>(acc, before + lane, to + lane, kPitch);
  else
    store_tile<T, kRows, kVectors>(acc, to + lane, kPitch);
}

template <class Multiply, class Shape, bool kSelect, class T = typename Shape::Element>
REGARD_NOINLINE void add_columns_of(const KeyRuns<Shape>& runs, const KeyTerm<T>* terms, int count,
                                    std::int64_t columns, int vectors, bool is_fresh, T* sums) {
  constexpr int kTile = Shape::kRows * Shape::kStripLanes;
  const auto add = [](const KeyTerm<T>& term, std::int64_t column, const KeyRun& run, const T* from,
                      const T* before, T* to) {
    for_vectors<Shape>(run.vectors.end - run.vectors.begin, [&](auto some) {
      add_run<Multiply, Shape, kSelect, some.value>(term, column, run, from, before, to);
    });
  };
  const bool is_one = count == 1 && runs.count == 1 &&
                      runs.run[0].vectors.end - runs.run[0].vectors.begin == vectors;
  for (std::int64_t column = 0; column < columns;
       column += Shape::kRows, sums += kTile) {
    const T* const before = is_fresh ? nullptr : sums;
    if (is_one) {
      add(terms[0], column, runs.run[0], nullptr, before, sums);
      continue;
    }
    // Runs of different vectors continue each other's sums in memory.
    T tile[kTile];
    for (int i = 0; i < kTile; i += kLanes<T>) store(tile + i, Vec<T>{});
    for (const KeyTerm<T>* term = terms; term < terms + count; ++term)
      for (int i = 0; i < runs.count; ++i)
        add(*term, column, runs.run[i], tile, nullptr, tile);
    for (int i = 0; i < kTile; i += kLanes<T>)
      store(sums + i, before ? load(before + i) + load(tile + i) : load(tile + i));
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
