// A bool mask, tile by tile: which tiles it hides altogether, which it leaves as they are, and for the others
// one bit for each row and key in shared memory.
#pragma once

#include "geometry.hpp"

namespace regard::cuda {

enum class MaskedTile { hidden, visible, mixed };

template <int kKeys>
class MaskTiles {
 public:
  static constexpr int kWords = kKeys / 32;  // of a row
  static constexpr int kBytes = kTileRows * kWords * 4;
  static_assert(kTileRows * kWords <= kThreads);

  // Each thread reads the mask for one word.
  REGARD_DEVICE MaskTiles(const AttentionProblem& problem, const Place& place)
      : keys_(place.entry.keys), column_stride_(problem.mask.column_stride) {
    const int row = static_cast<int>(threadIdx.x) / kWords;
    if (!problem.mask.data || row >= place.rows) return;
    const std::int64_t offset =
        offset_of(problem, problem.mask, place.entry, place.entry.first_query, place.head(row)) +
        place.query(row) * problem.mask.row_stride;
    row_ = static_cast<const unsigned char*>(problem.mask.data) + offset;
  }

  // Writes the bits of a tile. Of the block.
  REGARD_DEVICE MaskedTile classify(unsigned char* bits, std::int32_t first_key) const {
    const int word = static_cast<int>(threadIdx.x);
    const std::int32_t begin = first_key + word % kWords * 32;
    std::uint32_t seen = 0;
    bool is_complete = true;
    if (row_) {
#pragma unroll 8
      for (int i = 0; i < 32; ++i) {
        const std::int32_t key = begin + i;
        if (key < keys_.begin || key >= keys_.end) continue;
        const bool is_seen = row_[key * column_stride_] != 0;
        seen |= static_cast<std::uint32_t>(is_seen) << i;
        is_complete = is_complete && is_seen;
      }
    }
    if (word < kTileRows * kWords) store_shared(bits + word * 4, seen);
    if (!any_thread(seen != 0)) return MaskedTile::hidden;
    return any_thread(!is_complete) ? MaskedTile::mixed : MaskedTile::visible;
  }

 private:
  const unsigned char* row_ = nullptr;
  Keys keys_;
  std::int64_t column_stride_;
};

}  // namespace regard::cuda
