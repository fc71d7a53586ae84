// A block of which a strip sees few keys, for example those that an index has selected: only these
// keys are multiplied, and only their values are added.
//
//   keys that some lane sees       copied side by side -> products, stored at the keys' places
//   for a tile of the block        scores -> weights, as in every block
//   weights and values of the keys side by side -> output, as in every block
//
// The bits are those of the whole block: a product does not depend on its place in a tile, and the
// weight of a hidden key, -0.0, changes no sum.
#pragma once

#include "../ahead.hpp"
#include "../strips/products.hpp"
#include "../strips/scores.hpp"
#include "forward_workspace.hpp"

namespace regard {
namespace {

// Number of lines that are prefetched while a row is copied.
constexpr int kAheadOfRow = 16;

// Whether blocks may be gathered. Groups of four bits and the products of integers have their own
// layouts of a block.
REGARD_INLINE bool gathers(const AttentionProblem& problem) {
  return problem.sparse_mask && problem.sparse_mask->is_scattered &&
         problem.key.element != Element::q4_1 && problem.precision == Precision::full;
}

template <class Shape>
struct GatheredKeys {
  int count = 0;  // 0 if the block is computed as a whole
  int key[Shape::kBlockKeys];
};

// Lists the keys that some lane sees if they are at most half of the keys of their tiles.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void list_seen_keys(const SeenTiles<Shape>& tiles, const T* bias, int vectors,
                                    GatheredKeys<Shape>& gathered) {
  constexpr int kRows = Shape::kRows;
  const Mask<T> minus_infinity = as_bits<T>(broadcast(-kInfinity<T>));
  int of_tiles = 0, count = 0;
  for (int begin = 0; begin < tiles.end; begin += kRows) {
    const TileKind kind = tiles.kinds[begin / kRows];
    if (kind == TileKind::hidden) continue;
    of_tiles += kRows;
    for (int k = begin; k < begin + kRows && k < tiles.end; ++k) {
      Mask<T> shows{};
      for (int v = 0; v < vectors; ++v)
        shows |= as_bits<T>(load(bias + k * Shape::kStripLanes + v * kLanes<T>)) ^ minus_infinity;
      if (kind != TileKind::hiding || any<T>(shows != 0)) gathered.key[count++] = k;
    }
  }
  gathered.count = 2 * count <= of_tiles ? count : 0;
}

// Adds the keys and values that a strip sees in the block at `key` to `ahead`. The processor cannot
// predict which rows are read next.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void look_ahead_scattered(const AttentionProblem& problem,
                                          const AttentionTask& task, const StripRows<T>& strip,
                                          std::int64_t key, Ahead& ahead) {
  const SparseMask& mask = *problem.sparse_mask;
  const KvRows keys = keys_of(problem, task), values = values_of(problem, task);
  const std::int64_t end =
      key + Shape::kBlockKeys < task.kv_len ? key + Shape::kBlockKeys : task.kv_len;
  if (key >= end) return;
  const KeyInterval block = keys_of_mask(mask, key, end);
  const MaskRun& run = strip.mask_runs[0];
  for (const MaskSpan* span = span_after(run, block.begin);
       span != run.end && span->begin < block.end; ++span) {
    const KeyInterval own = common(block, {span->begin, span->end});
    const std::int64_t first = own.begin - mask.first_key, count = own.end - own.begin;
    if (problem.key.column_stride == 1) ahead.add(keys, first, count, problem.head_dim);
    if (problem.value.column_stride == 1 && values.data != keys.data)
      ahead.add(values, first, count, problem.value_dim);
  }
}

// to[i] = the row of key i, of padded_columns, with zeros after the last key to a whole tile.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void gather_rows(const KvRows& rows, std::int64_t block_begin,
                                 const GatheredKeys<Shape>& gathered, std::int64_t columns,
                                 std::int64_t padded_columns, const RowCopies<T>& to,
                                 Ahead& ahead) {
  const int padded_count = static_cast<int>(round_up(gathered.count, Shape::kRows));
  for (int i = 0; i < gathered.count; ++i) {
    const int count = i + 1 == gathered.count ? padded_count - i : 1;
    const std::int64_t key = block_begin + gathered.key[i];
    ahead.ask_lines(kAheadOfRow);
    copy_rows(rows, key, 1, columns, to.rows + i * padded_columns, count, padded_columns);
    if (scale_products(rows)) copy_scales(rows, key, 1, to.scales + i, count);
  }
}

// products[key] = the products of the gathered keys at their places in the block; others are 0.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void gather_products(const AttentionProblem& problem, const AttentionTask& task,
                                     const ForwardStrip<T>& strip, std::int64_t block_begin,
                                     int end, const GatheredKeys<Shape>& gathered,
                                     const RowCopies<T>& keys, Ahead& ahead, T* products) {
  constexpr int kRows = Shape::kRows, kPitch = Shape::kStripLanes;
  const KvRows rows = keys_of(problem, task);
  gather_rows<Shape>(rows, block_begin, gathered, problem.head_dim, problem.head_dim, keys, ahead);
  for (std::int64_t i = 0; i < round_up(end, kRows) * kPitch; i += kLanes<T>)
    store(products + i, Vec<T>{});
  for_vectors<Shape>(strip.vectors, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    for (int first = 0; first < gathered.count; first += kRows) {
      const RowProduct<T, kPitch> product{keys.rows + first * problem.head_dim, problem.head_dim,
                                          scale_products(rows) ? keys.scales + first : nullptr,
                                          strip.queries, problem.head_dim};
      Accumulators<T, kRows, kVectors> acc;
      product.template multiply<kRows, kVectors>(acc, 0);
      T tile[kRows * kPitch];
      store_tile<T, kRows, kVectors>(acc, tile, kPitch);
      for (int r = 0; r < kRows && first + r < gathered.count; ++r)
        for (int v = 0; v < kVectors; ++v)
          store(products + gathered.key[first + r] * kPitch + v * kLanes<T>,
                load<T>(tile + r * kPitch + v * kLanes<T>));
    }
  });
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
REGARD_NOINLINE void gather_weights(const GatheredKeys<Shape>& gathered, int vectors, T* weights) {
  constexpr int kPitch = Shape::kStripLanes;
  for (int i = 0; i < gathered.count; ++i)
    for (int v = 0; v < vectors; ++v)
      store(weights + i * kPitch + v * kLanes<T>,
            load<T>(weights + gathered.key[i] * kPitch + v * kLanes<T>));
}

}  // namespace
}  // namespace regard
