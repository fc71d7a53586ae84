// The sizes that a target chooses for its registers and caches.
#pragma once

#include <cstdint>

#include "../simd/instruction_set.hpp"

namespace regard {
namespace {

constexpr int kLineBytes = 64;  // of a cache

// The tile sizes of one element type on one target. Registers of a tile: kRows x kVectors
// accumulators, kVectors of the right operand, one broadcast.
template <class T, int kRows_, int kVectors_, int kRegisters>
struct TileShape {
  using Element = T;
  static constexpr int kRows = kRows_;
  static constexpr int kVectors = kVectors_;
  static constexpr int kRegisterCount = kRegisters;
  static constexpr int kStripLanes = kVectors * kLanes<T>;
  // Keys whose weights are kept between the two products. A row's sum over keys is formed block by
  // block, so this size is part of what decides its bits; 64 to 128 measure alike (docs/lab-notes.md).
  static constexpr int kBlockKeys = 96;
  // Keys whose softmax stands alone until it is merged with that of the keys before (softmax_state.hpp).
  static constexpr int kChunkKeys = 16 * kBlockKeys;
  // Rows share one pass over a block of keys: as many as make strips of about this size, queries and
  // outputs together, which leaves L2 room for the block. That cuts the traffic from beyond L2, and
  // what it costs to copy a block, by the number of rows: 384 at head_dim 64, 192 at 128.
  static constexpr std::int64_t kTaskBytes = 192 * 1024;
  static constexpr std::int64_t kMostTaskRows = 16 * kStripLanes;
  // Where a mask has rows of its own, no strip crosses a multiple of this many rows: masks made of
  // blocks have blocks of 64 or 128, and a strip across two of them computes what either sees.
  static constexpr std::int64_t kMaskRows = 128;
  static_assert(kMaskRows % kLanes<T> == 0, "a chunk of rows is a whole number of vectors");

  // In the backward kernel, strips whose products with the rows of keys are summed together.
  static constexpr int kBandStrips = 2;
  static constexpr std::int64_t piece_bytes(std::int64_t l2_bytes) { return l2_bytes / 4 * 3; }
  static_assert(kRows * kVectors + kVectors + 1 <= kRegisters, "the tile does not fit in registers");
  static_assert(kBlockKeys % kRows == 0, "a block is a whole number of tiles");
  static_assert(kRows == 4 || kRows == 8, "a tile's keys are a word of bool mask (mask_tiles.hpp)");
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace
}  // namespace regard
