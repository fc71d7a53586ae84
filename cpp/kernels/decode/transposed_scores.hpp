// scores = query key from a copy of the keys with keys in lanes:
//
//   for as many vectors of keys as a tile has       from the rows in place
//     for a square of keys and dimensions           transposed to [dimension][key] in L1
//     for the rows of a tile                        a tile of rows x vectors stays in registers
//       for a dimension
//         scores += query (broadcast) * keys
//
// Each loaded key serves all rows of the tile, and each broadcast query serves all vectors of the
// tile. Without the copy, the square would occupy half of 16 registers, and a broadcast would serve
// one vector.
#pragma once

#include "../../simd/lane_parts.hpp"
#include "../../simd/transpose.hpp"
#include "../micro_kernel.hpp"
#include "../ahead.hpp"
#include "decode_block.hpp"
#include "narrow_scores.hpp"

namespace regard {
namespace {

// Number of lines prefetched per square of kLanes keys and dimensions, and the part of them that is
// prefetched while the square is transposed. The others follow during the products, which take
// longer.
template <class T, class From>
constexpr int kAskedOfSquare = kAheadOfScores<false> * kLanes<T> * kLanes<T> *
                               static_cast<int>(sizeof(From)) / (4 * kLineBytes);
template <class T, class From>
constexpr int kAskedWhileTransposing = kAskedOfSquare<T, From> * 3 / 10;

// Computes transposed[dimension][key] of kLanes keys, whose rows are padded to whole vectors.
template <class T, class From>
REGARD_INLINE void transpose_keys(const From* const* keys, std::int64_t padded_head_dim,
                                  T* transposed, std::ptrdiff_t stride, Ahead& ahead) {
  constexpr int kAsked = kAskedWhileTransposing<T, From>;
  for (std::int64_t d = 0; d < padded_head_dim; d += kLanes<T>) {
    AskedLine asked = ahead.go_on();
    Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) square[i] = load_as<T>(keys[i] + d);
    transpose<T>(square);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
      store(transposed + (d + i) * stride, square[i]);
#pragma GCC unroll 8
      for (int n = kAsked * i / kLanes<T>; n < kAsked * (i + 1) / kLanes<T>; ++n) ahead.ask(asked);
    }
    ahead.stop(asked);
  }
}

// The same for integers, times kByteOnTop. Four dimensions per lane are transposed together.
REGARD_INLINE void transpose_keys(const std::int8_t* const* keys, std::int64_t padded_head_dim,
                                  float* transposed, std::ptrdiff_t stride, Ahead&) {
  constexpr int kWidth = kLanes<float>, kParts = kLaneParts<std::int8_t>;
  for (std::int64_t d = 0; d < padded_head_dim; d += kParts * kWidth) {
    Vec<float> square[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) square[i] = load(reinterpret_cast<const float*>(keys[i] + d));
    transpose<float>(square);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      const Mask<float> parts = parts_of<std::int8_t>(as_bits<float>(square[i]));
      for_parts<kParts>([&](auto part) {
        store(transposed + (d + kParts * i + part.value) * stride,
              part_of<std::int8_t, part.value>(parts));
      });
    }
  }
}

// Computes scores[row][key] for kTileRows of kRows rows and kVectors vectors of keys.
template <class T, class From, int kRows, int kTileRows, int kVectors>
REGARD_NOINLINE void score_transposed(const T* transposed, std::int64_t padded_head_dim,
                                      const T* queries, T* const* scores,
                                      std::ptrdiff_t score_stride, Ahead& ahead) {
  constexpr int kAskedOfRows =
      (kAskedOfSquare<T, From> - kAskedWhileTransposing<T, From>)*kVectors * kTileRows / kRows;
  constexpr int kQuartersAsked = (4 * kAskedOfRows + kLanes<T> - 1) / kLanes<T>;
  Accumulators<T, kTileRows, kVectors> acc;
  clear<T, kTileRows, kVectors>(acc);
  AskedLine asked = ahead.go_on();
  // Not unrolled: the compiler would load the vectors of several turns before the first product and
  // spill most of them to the stack.
#pragma GCC unroll 1
  for (std::int64_t d = 0; d < padded_head_dim; ++d) {
    ahead.ask_quarters<kQuartersAsked>(d, asked);
    Vec<T> keys[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) keys[v] = load(transposed + (d * kVectors + v) * kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = fma(keys[v], broadcast(queries[d * kRows + r]), acc[r][v]);
  }
  ahead.stop(asked);
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(scores[v] + r * score_stride, acc[r][v]);
}

template <class Shape, int kRows, class From, class T = typename Shape::Element>
REGARD_NOINLINE void score_transposed_steps(const DecodeBlock<Shape>& block, std::uint32_t steps,
                                            const DecodeWorkspace<T>& work, Ahead& ahead) {
  constexpr int kStep = kDecodeStep<Shape>, kBlock = round_up(Shape::kBlockKeys, kStep);
  constexpr int kVectors = Shape::kVectors, kTileRows = kRows < Shape::kRows ? kRows : Shape::kRows;
  static_assert(kRows % kTileRows == 0, "rows are whole tiles");
  const From* keys[kVectors][kLanes<T>];
  T* scores[kVectors];
  int waiting = 0;
  const auto score = [&](auto vectors, int first) {
    constexpr int kTogether = decltype(vectors)::value;
    for (int v = 0; v < kTogether; ++v)
      transpose_keys(keys[first + v], work.padded_head_dim, work.transposed + v * kLanes<T>,
                     kTogether * kLanes<T>, ahead);
    for (int row = 0; row < kRows; row += kTileRows) {
      score_transposed<T, From, kRows, kTileRows, kTogether>(
          work.transposed, work.padded_head_dim, work.queries + row, scores + first, kBlock, ahead);
      for (int v = 0; v < kTogether; ++v) scores[first + v] += kTileRows * kBlock;
    }
  };
  for_steps<Shape>(steps, [&](int begin) {
    for (int k = 0; k < kStep; k += kLanes<T>) {
      rows_of_keys(block, begin, k, keys[waiting]);
      scores[waiting++] = work.scores + begin + k;
      if (waiting < kVectors) continue;
      score(Constant<kVectors>{}, 0);
      waiting = 0;
    }
  });
  for (int v = 0; v < waiting; ++v) score(Constant<1>{}, v);
}

}  // namespace
}  // namespace regard
