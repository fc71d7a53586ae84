// The sizes that a target chooses for its registers and caches.
#pragma once

#include <cstdint>

#include "../simd/instruction_set.hpp"

namespace regard {
namespace {

constexpr int kLineBytes = 64;  // cache line

// The sizes tuned for a target, which its header defines.
struct Tuning {
  int registers;  // 16 or 32
  // In a matrix product, the depth of a panel of columns, and the length of the chains in which
  // products are summed. A panel of this depth has 24 KB, which leaves room in L1 for a tile of
  // rows. The depth is at most 256, because longer chains lose bits.
  int matmul_depth;
  // Number of vectors of keys whose scores a decode computes together from registers.
  int decode_vectors = 1;
};
constexpr Tuning kTuning = REGARD_TUNING;

// The tile sizes of one element type.
template <class T>
struct TileShape {
  using Element = T;
  static constexpr int kRegisterCount = kTuning.registers;
  // A tile of keys x queries. Its rows x vectors accumulators, the vectors of the right operand,
  // and one broadcast are in registers.
  static constexpr int kRows = kRegisterCount / 4;
  static constexpr int kVectors = 3;
  // A tile of keys x dimensions, for the gradients of keys and values. Likewise in registers; the
  // number of vectors divides the usual dimensions.
  static constexpr int kKeyRows = 6;
  static constexpr int kKeyVectors = kRegisterCount / 8;
  // Also the distance between the rows of a strip's arrays, however many vectors the strip has, so
  // that the code of a tile depends only on the number of vectors that it computes.
  static constexpr int kStripLanes = kVectors * kLanes<T>;
  // Whether strips and tiles have any number of vectors, so that only vectors that see a key are
  // computed. In float64 they have one vector or kVectors, which saves compile time.
  static constexpr bool kTrims = sizeof(T) == 4;

  // The number of vectors that are computed for `lanes` lanes.
  static constexpr int vectors_for(int lanes) {
    const int vectors = (lanes + kLanes<T> - 1) / kLanes<T>;
    return kTrims || vectors == 1 ? vectors : kVectors;
  }
  // Number of keys whose weights are stored between the two products. A row's sum over keys is
  // computed block by block, so this size affects the bits of the sum. Sizes from 64 to 128 have
  // the same speed (docs/lab-notes.md).
  static constexpr int kBlockKeys = 96;
  // Number of keys with a separate softmax, which is then merged with the softmax of the earlier
  // keys (softmax_state.hpp).
  static constexpr int kChunkKeys = 16 * kBlockKeys;
  static constexpr std::int64_t kMostTaskRows = 16 * kStripLanes;
  // If a mask is not broadcast over queries, no strip crosses a multiple of this number of rows.
  // Masks made of blocks have blocks of 64 or 128, and a strip across two blocks computes the keys
  // that either block sees.
  static constexpr std::int64_t kMaskRows = 128;
  // Number of strips over whose queries the gradients of keys and values are summed before they are
  // added to the gradients in memory. Twice as many strips were slower with an L2 of 512 KB
  // (docs/lab-notes.md).
  static constexpr int kBandStrips = 2;
  // In the backward kernel, a piece of keys, with their values and the gradients of both, occupies
  // at most this much memory, and at most three quarters of L2.
  static constexpr int kPieceBytes = 640 * 1024;
  // The rows of a task share one pass over each block of keys. Their number is chosen so that the
  // strips occupy about this many bytes, queries and outputs together, which leaves room for the
  // block in L2. This divides the traffic from beyond L2 and the cost of copying a block by the
  // number of rows: 384 at head_dim 64, 192 at 128.
  static constexpr int kTaskBytes = 192 * 1024;

  static_assert(kMaskRows % kLanes<T> == 0, "a chunk of rows is a whole number of vectors");
  static_assert(kRows * kVectors + kVectors + 1 <= kRegisterCount,
                "the tile does not fit in registers");
  static_assert(kKeyRows * kKeyVectors + kKeyVectors + 1 <= kRegisterCount,
                "the tile of keys x dimensions does not fit in registers");
  static_assert(kBlockKeys % kRows == 0, "a block is a whole number of tiles");
  static_assert(kRows == 4 || kRows == 8,
                "a tile's keys are a word of bool mask (strips/bool_mask.hpp)");
};

using Float32 = TileShape<float>;
using Float64 = TileShape<double>;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace
}  // namespace regard
