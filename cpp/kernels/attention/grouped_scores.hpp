// Scores of keys in groups of four-bit integers (../groups_of_four_bits.hpp): the product of a tile
// is formed group by group.
#pragma once

#include "../strips/lanes.hpp"
#include "forward_block.hpp"

namespace regard {
namespace {

// tile = the scores of a StoredProduct whose keys have groups: in memory, since sums that are
// elsewhere in registers must have no address.
template <class T, int kRows, int kVectors, int kStripVectors, class Product>
REGARD_NOINLINE void multiply_groups(const Product& product, int lane, T* tile) {
  constexpr int kWidth = kStripVectors * kLanes<T>;
  Accumulators<T, kRows, kVectors> acc;
  clear<T, kRows, kVectors>(acc);
  for (std::int64_t group = 0; group < product.depth / kGroupOfFourBits; ++group) {
    const std::int64_t first = group * kGroupOfFourBits;
    Accumulators<T, kRows, kVectors> sums;
    clear<T, kRows, kVectors>(sums);
    multiply_rows<T, kRows, kVectors>(sums, product.rows + first, product.row_stride,
                                      product.lanes + first * kWidth + lane, kWidth,
                                      kGroupOfFourBits);
    const T* const scales = product.groups + 2 * group * product.group_stride;
    const T* const minimums = scales + product.group_stride;
    const T* const sums_of_query = product.query_sums + group * kWidth + lane;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = fma(sums[r][v], broadcast(scales[r]), acc[r][v]);
        acc[r][v] = fma(load(sums_of_query + v * kLanes<T>), broadcast(minimums[r]), acc[r][v]);
      }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      acc[r][v] = acc[r][v] * load(product.query_steps + lane + v * kLanes<T>);
  store_tile<T, kRows, kVectors>(acc, tile);
}

// A tile's keys, which are integers where there are groups, times a strip's queries.
template <class T>
struct StoredProduct : RowProduct<T> {
  // [groups][scale, minimum][group_stride]: of the tile's keys. Null where keys have no groups.
  const T* groups;
  std::ptrdiff_t group_stride;
  const T* query_sums;   // [groups][lanes]
  const T* query_steps;  // [lanes]

  template <int kRows, int kVectors, int kStripVectors>
  REGARD_MEMBER void multiply(Accumulators<T, kRows, kVectors>& acc, int lane) const {
    if (__builtin_expect(groups == nullptr, true))
      return RowProduct<T>::template multiply<kRows, kVectors, kStripVectors>(acc, lane);
    T tile[kRows * kVectors * kLanes<T>];
    multiply_groups<T, kRows, kVectors, kStripVectors>(*this, lane, tile);
    load_tile<T, kRows, kVectors>(acc, tile);
  }
};

// Rounds the strip's packed queries to integers.
template <class T>
REGARD_NOINLINE void round_queries(std::int64_t head_dim, const ForwardStrip<T>& strip) {
  const int lanes = strip.vectors * kLanes<T>;
  const Vec<T> round = broadcast(kRoundsToInteger<T>);
  for (int lane = 0; lane < lanes; lane += kLanes<T>) {
    T* const queries = strip.queries + lane;
    Vec<T> largest{};
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const Vec<T> query = load(queries + d * lanes);
      const Vec<T> magnitude = query < Vec<T>{} ? -query : query;
      // What is NaN stays.
      largest = largest >= magnitude || largest != largest ? largest : magnitude;
    }
    Vec<T> inverse{};
    for (int i = 0; i < kLanes<T>; ++i) {
      const QuerySteps<T> steps = query_steps<T>(largest[i]);
      strip.query_steps[lane + i] = steps.step;
      inverse[i] = steps.inverse;
    }
    Vec<T> sum{};
    for (std::int64_t d = 0; d < head_dim; ++d) {
      T* const at = queries + d * lanes;
      const Vec<T> integer = load(at) * inverse + round - round;
      store(at, inverse == Vec<T>{} ? Vec<T>{} : integer);
      sum = sum + load(at);
      if (d % kGroupOfFourBits != kGroupOfFourBits - 1) continue;
      store(strip.query_sums + d / kGroupOfFourBits * lanes + lane, sum);
      sum = Vec<T>{};
    }
  }
}

}  // namespace
}  // namespace regard
