// The gradients of keys and values, for the keys of a block that a band sees. Rows are keys,
// dimensions are in lanes, and sums run over the band's queries. For the gradients of queries, see
// add_columns (../strips/products.hpp).
#pragma once

#include "backward_workspace.hpp"

namespace regard {
namespace {

// A range of keys in a block, and the vectors of a band's strips that see some of these keys.
template <class Shape>
struct BandRun {
  int begin;
  int end;
  VectorRange vectors[Shape::kBandStrips];  // empty for a fully masked strip
};

template <class Shape>
struct BandRuns {
  int count = 0;
  bool hide_something = false;
  BandRun<Shape> run[kBlockTiles<Shape>];
};

// Merges the runs of all strips of a band.
template <class Shape>
REGARD_NOINLINE BandRuns<Shape> runs_of_band(const KeyRuns<Shape>* strips, int strip_count) {
  constexpr int kRows = Shape::kRows;
  BandRuns<Shape> band;
  int next[Shape::kBandStrips]{};  // index into each strip's runs
  for (int key = 0; key < Shape::kBlockKeys; key += kRows) {
    BandRun<Shape> tile{key, key + kRows, {}};
    bool is_seen = false, goes_on = band.count > 0 && band.run[band.count - 1].end == key;
    for (int s = 0; s < strip_count; ++s) {
      const KeyRuns<Shape>& runs = strips[s];
      while (next[s] < runs.count && runs.run[next[s]].end <= key) ++next[s];
      if (next[s] < runs.count && runs.run[next[s]].begin <= key) {
        tile.vectors[s] = runs.run[next[s]].vectors;
        is_seen = true;
      }
      if (goes_on) {
        const VectorRange& before = band.run[band.count - 1].vectors[s];
        goes_on = before.begin == tile.vectors[s].begin && before.end == tile.vectors[s].end;
      }
    }
    if (!is_seen) continue;
    if (goes_on)
      band.run[band.count - 1].end = tile.end;
    else
      band.run[band.count++] = tile;
  }
  for (int s = 0; s < strip_count; ++s) band.hide_something |= strips[s].hide_something;
  return band;
}

template <class Shape, class Factors>
struct BackwardProducts {
  using T = typename Shape::Element;
  static constexpr int kRowsOfElement = Factors::kRowsOfElement;
  static constexpr int kKeyRows = Shape::kKeyRows;
  static constexpr int kVectors = Shape::kKeyVectors;
  static constexpr int kPitch = Shape::kStripLanes;  // between consecutive keys of a block
  static constexpr int kBlock = Shape::kBlockKeys * kPitch;
  static_assert(Shape::kRows % 2 == 0,
                "what is left of a run is a whole number of tiles of 2 rows");

  // For the keys of the runs,
  //
  //   sums[key][column] += sum over the band's rows of
  //                        blocks[strip][key][row] rows[strip row][column]
  //
  // `sums` begins with the block's first key. If `selects`, hidden terms are skipped.
  REGARD_INLINE void add_rows(bool selects, const BandRuns<Shape>& runs, const T* blocks,
                              const RowsOfBand<T>& rows, int row_count, std::int64_t padded_columns,
                              T* sums) {
    if (selects)
      add_panels<true>(runs, blocks, rows, row_count, padded_columns, sums);
    else
      add_panels<false>(runs, blocks, rows, row_count, padded_columns, sums);
  }

 private:
  template <bool kSelect>
  REGARD_NOINLINE void add_panels(const BandRuns<Shape>& runs, const T* blocks,
                                  const RowsOfBand<T>& rows, int row_count,
                                  std::int64_t padded_columns, T* sums) {
    std::int64_t column = 0;
    for (; column + kVectors * kLanes<T> <= padded_columns; column += kVectors * kLanes<T>)
      add_panel<kVectors, kSelect>(runs, blocks, rows.from + column, rows.stride, row_count,
                                   padded_columns, sums + column);
    for (; column < padded_columns; column += kLanes<T>)
      add_panel<1, kSelect>(runs, blocks, rows.from + column, rows.stride, row_count,
                            padded_columns, sums + column);
  }

  template <int kPanelVectors, bool kSelect>
  REGARD_INLINE void add_panel(const BandRuns<Shape>& runs, const T* blocks, const T* rows,
                               std::ptrdiff_t row_stride, int row_count, std::int64_t stride,
                               T* sums) {
    for (int i = 0; i < runs.count; ++i) {
      const BandRun<Shape>& run = runs.run[i];
      int key = run.begin;
      const auto add = [&](auto tile) {
        Accumulators<T, tile.value, kPanelVectors> acc;
        clear<T, tile.value, kPanelVectors>(acc);
        for (int s = 0; s * kPitch < row_count; ++s) {
          const int left = row_count - s * kPitch;
          const int first = run.vectors[s].begin * kLanes<T>, end = run.vectors[s].end * kLanes<T>;
          const int depth = (end < left ? end : left) - first;
          Factors::template multiply<tile.value, kPanelVectors, kSelect>(
              acc, blocks + s * kBlock + key * kPitch + first / kRowsOfElement, kPitch,
              rows + (s * kPitch + first) / kRowsOfElement * row_stride, row_stride,
              (depth + kRowsOfElement - 1) / kRowsOfElement);
        }
        add_tile<T, tile.value, kPanelVectors>(acc, sums + key * stride, sums + key * stride,
                                               stride);
        key += tile.value;
      };
      while (key + kKeyRows <= run.end) add(Constant<kKeyRows>{});
      if (key + 4 <= run.end) add(Constant<4>{});
      if (key + 2 <= run.end) add(Constant<2>{});
    }
  }
};

}  // namespace
}  // namespace regard
