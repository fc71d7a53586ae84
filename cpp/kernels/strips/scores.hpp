// The scores of a tile: products of its keys and a strip's queries, scaled, capped, plus the bias.
#pragma once

#include "../micro_kernel.hpp"
#include "score_function.hpp"
#include "tile_rows.hpp"

namespace regard {
namespace {

// The product of a tile's rows and the contents of a strip's lanes, [depth][kPitch].
template <class T, int kPitch>
struct RowProduct {
  const T* rows;
  std::ptrdiff_t row_stride;
  const T* scales;
  const T* lanes;
  std::int64_t depth;

  // acc += the product, for kVectors of the strip's vectors, starting at lane `lane`.
  template <int kRows, int kVectors>
  REGARD_MEMBER void add_to(Accumulators<T, kRows, kVectors>& acc, int lane) const {
    multiply_rows<T, kRows, kVectors>(acc, rows, row_stride, lanes + lane, kPitch, depth);
  }

  template <int kRows, int kVectors>
  REGARD_MEMBER void multiply(Accumulators<T, kRows, kVectors>& acc, int lane) const {
    clear<T, kRows, kVectors>(acc);
    add_to<kRows, kVectors>(acc, lane);
    if (__builtin_expect(scales == nullptr, true)) return;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = acc[r][v] * broadcast(scales[r]);
  }
};

// The product of a tile's rows.
template <class Shape, class Tile, class T = typename Shape::Element>
REGARD_INLINE RowProduct<T, Shape::kStripLanes> product_of(const Tile& tile,
                                                           const TileRows<T>& rows, const T* lanes,
                                                           std::int64_t depth) {
  const T* const scales = rows.scales ? rows.scales + tile.begin : nullptr;
  if (tile.begin >= rows.whole) return {rows.tail, rows.tail_stride, scales, lanes, depth};
  return {rows.from + tile.begin * rows.stride, rows.stride, scales, lanes, depth};
}

// acc = scores of a tile of keys. `bias` is the tile's bias. `capped_scores` is memory for a tile,
// which holds the capped scores, without gaps, if scores are more than scaled products.
template <class Shape, class Tile, class Product, class T = typename Shape::Element>
REGARD_INLINE void score_tile(Accumulators<T, Shape::kRows, Tile::kVectors>& acc, const Tile& tile,
                              const ScoresOfBlock<T>& block, const Product& product, const T* bias,
                              T* capped_scores) {
  constexpr int kRows = Shape::kRows, kVectors = Tile::kVectors;
  product.template multiply<kRows, kVectors>(acc, tile.lane);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Vec<T> scale = load(block.strip.scales + tile.lane + v * kLanes<T>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[r][v] = acc[r][v] * scale;
  }
  if (__builtin_expect(transforms_scores(block.strip), false)) {
    constexpr int kWidth = kVectors * kLanes<T>;
    store_tile<T, kRows, kVectors>(acc, capped_scores, kWidth);
    transform_scores<Shape>(block, tile, kWidth, capped_scores, [&](const T* from) {
      load_tile<T, kRows, kVectors>(acc, from, kWidth);
    });
  }
  if constexpr (Tile::kBias != Bias::none) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = with_added<T, Tile::kBias>(
            acc[r][v], load(bias + r * Shape::kStripLanes + tile.lane + v * kLanes<T>));
  }
}

}  // namespace
}  // namespace regard
