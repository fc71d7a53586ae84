// The sizes that a target chooses for its registers and caches.
#pragma once

#include <cstdint>

#include "../simd/instruction_set.hpp"

namespace regard {
namespace {

constexpr int kLineBytes = 64;  // of a cache

// What a target chooses for its registers and caches: all that is tuned for it is in its header,
// except the numbers that all targets share, which are the defaults here.
struct Tuning {
  // A tile of keys x queries: rows x vectors accumulators, vectors of the right operand, and one
  // broadcast are in registers.
  int rows;
  int vectors;
  int registers;
  // A tile of keys x dimensions, of the gradients of keys and values: likewise, with a number of
  // vectors that divides the usual dimensions.
  int key_rows = 6;
  int key_vectors;
  // Strips over whose queries these gradients are summed before they are added to those in memory.
  // Twice as many were slower where L2 has 512 KB (docs/lab-notes.md).
  int band_strips = 2;
  // In the backward kernel, a piece of keys with their values and the gradients of both takes at
  // most this much, and at most three quarters of L2.
  int piece_bytes = 640 * 1024;
  // Rows share one pass over a block of keys: as many as make strips of about this size, queries
  // and outputs together, which leaves L2 room for the block. That cuts the traffic from beyond L2,
  // and what it costs to copy a block, by the number of rows: 384 at head_dim 64, 192 at 128.
  int task_bytes = 192 * 1024;
  // In a matrix product, the depth of a panel of columns, and of the chains in which products are
  // summed: as many as make 24 KB, which leaves room in L1 for a tile of rows, but not more than
  // 256, since longer chains lose bits.
  int matmul_depth;
  // Vectors of keys whose scores are formed together where a decode has one row, and where it has
  // more and multiplies keys from registers.
  int decode_vectors_of_a_row = 1;
  int decode_vectors_of_rows = 1;
};

// The tile sizes of one element type on one target.
template <class T, Tuning kTuning>
struct TileShape {
  using Element = T;
  static constexpr Tuning kTarget = kTuning;
  static constexpr int kRows = kTuning.rows;
  static constexpr int kVectors = kTuning.vectors;
  static constexpr int kRegisterCount = kTuning.registers;
  static constexpr int kStripLanes = kVectors * kLanes<T>;
  // Keys whose weights are kept between the two products. A row's sum over keys is formed block by
  // block, so this size is part of what decides its bits; 64 to 128 measure alike
  // (docs/lab-notes.md).
  static constexpr int kBlockKeys = 96;
  // Keys with a softmax of their own, until it is merged with that of the keys before
  // (softmax_state.hpp).
  static constexpr int kChunkKeys = 16 * kBlockKeys;
  static constexpr std::int64_t kMostTaskRows = 16 * kStripLanes;
  // Where a mask has rows of its own, no strip crosses a multiple of this many rows: masks made of
  // blocks have blocks of 64 or 128, and a strip across two of them computes what either sees.
  static constexpr std::int64_t kMaskRows = 128;
  static constexpr int kBandStrips = kTuning.band_strips;

  static_assert(kMaskRows % kLanes<T> == 0, "a chunk of rows is a whole number of vectors");
  static_assert(kRows * kVectors + kVectors + 1 <= kRegisterCount,
                "the tile does not fit in registers");
  static_assert(kTuning.key_rows * kTuning.key_vectors + kTuning.key_vectors + 1 <= kRegisterCount,
                "the tile of keys x dimensions does not fit in registers");
  static_assert(kBlockKeys % kRows == 0, "a block is a whole number of tiles");
  static_assert(kRows == 4 || kRows == 8,
                "a tile's keys are a word of bool mask (strips/bool_mask.hpp)");
};

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace
}  // namespace regard
