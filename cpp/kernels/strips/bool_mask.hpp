// A bool mask over a strip and a block. It is read one word of a tile's keys at a time: the
// conjunction and the disjunction of the lanes' words determine whether a tile is all True or all
// False.
#pragma once

#include "../../simd/vec.hpp"
#include "../mask_value.hpp"
#include "sparse_mask.hpp"

namespace regard {
namespace {

// The bytes of a bool mask for one lane of a tile, one byte per key.
template <int kRows>
using MaskWord = std::make_unsigned_t<LaneWord<kRows>>;

template <int kRows>
REGARD_INLINE MaskWord<kRows> read_mask_word(const unsigned char* row, std::int64_t stride,
                                             int keys) {
  MaskWord<kRows> word = 0;
  if (stride == 1 && keys == kRows) {
    __builtin_memcpy(&word, row, sizeof word);
  } else {
    for (int r = 0; r < keys; ++r)
      word |= static_cast<MaskWord<kRows>>(row[r * stride] != 0) << (8 * r);
  }
  return word;
}

// The disjunction and the conjunction of the lanes' bytes, one word per tile.
template <int kRows, int kTiles>
struct MaskScan {
  MaskWord<kRows> some[kTiles];
  MaskWord<kRows> every[kTiles];
};

// Scans a whole block with contiguous rows: 32 bytes at a time, in registers over all lanes.
template <int kRows, int kTiles>
REGARD_NOINLINE void scan_whole_block(const unsigned char* const* rows, int lanes,
                                      MaskScan<kRows, kTiles>& scan) {
  typedef std::uint64_t Bytes __attribute__((vector_size(32), aligned(1), may_alias));
  constexpr int kPieces = kRows * kTiles / 32;
  static_assert(kRows * kTiles % 32 == 0, "a block is a whole number of pieces");
  Bytes some[kPieces], every[kPieces];
#pragma GCC unroll 8
  for (int i = 0; i < kPieces; ++i) some[i] = every[i] = reinterpret_cast<const Bytes*>(rows[0])[i];
  for (int lane = 1; lane < lanes; ++lane) {
    const Bytes* row = reinterpret_cast<const Bytes*>(rows[lane]);
#pragma GCC unroll 8
    for (int i = 0; i < kPieces; ++i) {
      const Bytes bytes = row[i];
      some[i] |= bytes;
      every[i] &= bytes;
    }
  }
  __builtin_memcpy(scan.some, some, sizeof some);
  __builtin_memcpy(scan.every, every, sizeof every);
}

// Scans part of a block, or rows with another stride.
template <int kRows, int kTiles>
REGARD_NOINLINE void scan_tiles(const unsigned char* const* rows, int lanes, std::int64_t stride,
                                int count, int first, int last, MaskScan<kRows, kTiles>& scan) {
  for (int t = first; t < last; ++t) {
    const int keys = count - t * kRows < kRows ? count - t * kRows : kRows;
    scan.some[t] = scan.every[t] =
        read_mask_word<kRows>(rows[0] + t * kRows * stride, stride, keys);
    for (int lane = 1; lane < lanes; ++lane) {
      const auto word = read_mask_word<kRows>(rows[lane] + t * kRows * stride, stride, keys);
      scan.some[t] |= word;
      scan.every[t] &= word;
    }
  }
}

// The rows that the lanes of a strip read for a block of a bool mask, dense or sparse.
template <class Shape>
struct BoolRows {
  const unsigned char* row[Shape::kStripLanes];
  std::int64_t stride;
  int lanes;  // lanes with their own rows; the others share these rows
  unsigned char bytes[Shape::kStripLanes * (Shape::kBlockKeys + kMaskRoom)];  // for a sparse mask
};

template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void find_bool_rows(const AttentionProblem& problem, const AttentionTask& task,
                                    const StripRows<T>& strip, std::int64_t block_begin, int count,
                                    BoolRows<Shape>& rows) {
  if (strip.mask_runs) {
    rows.stride = 1;
    rows.lanes = strip.rows;
    write_mask_rows(*problem.sparse_mask, strip, block_begin, block_begin + count, rows.bytes,
                    rows.row);
    return;
  }
  rows.stride = problem.mask.column_stride;
  rows.lanes = lanes_share_a_row(problem, problem.mask) ? 1 : strip.rows;
  mask_rows(problem, problem.mask, task.mask, strip, block_begin, rows.row);
}

// Computes kinds[t] of the tiles [first, last) from a bool mask: hidden, visible, or, for a
// mixture, hiding.
template <class Shape>
REGARD_NOINLINE void scan_bool_mask(const BoolRows<Shape>& rows, int count, int first, int last,
                                    TileKind* kinds) {
  constexpr int kRows = Shape::kRows, kTiles = Shape::kBlockKeys / kRows;
  using Word = MaskWord<kRows>;
  MaskScan<kRows, kTiles> scan;
  if (rows.stride == 1 && count == kRows * kTiles) {
    scan_whole_block(rows.row, rows.lanes, scan);
  } else {
    scan_tiles(rows.row, rows.lanes, rows.stride, count, first, last, scan);
  }
  // NumPy stores True as 1. Any other nonzero byte makes its tile a mixture, which only costs time.
  constexpr Word kAllTrue = static_cast<Word>(0x0101010101010101u);
  for (int t = first; t < last; ++t) {
    const int keys = count - t * kRows < kRows ? count - t * kRows : kRows;
    const Word wanted = keys == kRows ? kAllTrue : kAllTrue & ((Word{1} << (8 * keys)) - 1);
    kinds[t] = scan.some[t] == 0                    ? TileKind::hidden
               : (scan.every[t] & wanted) == wanted ? TileKind::visible
                                                    : TileKind::hiding;
  }
}

// Writes -inf into one tile's bias for keys whose bool mask is False, starting at key `key` of the
// block.
template <class Shape, class T = typename Shape::Element>
REGARD_NOINLINE void hide_by_bool_mask(const BoolRows<Shape>& rows, const StripRows<T>& strip,
                                       int key, int keys, bool bias_is_set, T* bias) {
  constexpr int kRows = Shape::kRows;
  const int width = strip.vectors * kLanes<T>;
  constexpr int kBytes = sizeof(T) < kRows ? static_cast<int>(sizeof(T)) : kRows;
  constexpr int kParts = kRows / kBytes;
  // part[p][lane] holds the bytes of the rows from p * kBytes, in an integer as wide as a lane.
  T part[kParts][Shape::kStripLanes];
  for (int lane = 0; lane < width; ++lane) {
    const MaskWord<kRows> word =
        read_mask_word<kRows>(rows.row[lane] + key * rows.stride, rows.stride, keys);
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(word) >> (8 * kBytes * p);
      __builtin_memcpy(&part[p][lane], &bytes, sizeof(T));
    }
  }
  for (int lane = 0; lane < width; lane += kLanes<T>)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Mask<T> bytes = as_bits<T>(load(part[r / kBytes] + lane));
      const Mask<T> hidden = (bytes >> (8 * (r % kBytes)) & 0xff) == 0;
      T* at = bias + r * Shape::kStripLanes + lane;
      store(at, select<T>(hidden, broadcast(-kInfinity<T>), bias_is_set ? load<T>(at) : Vec<T>{}));
    }
}

}  // namespace
}  // namespace regard
