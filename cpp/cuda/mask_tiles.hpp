// A bool mask, tile by tile: which tiles it hides entirely, which it leaves unchanged, and for all
// other tiles one bit for each row and key in shared memory.
#pragma once

#include "row_table.hpp"

namespace regard::cuda {

enum class MaskedTile { hidden, visible, mixed };

template <int kKeys>
struct MaskTiles {
  static constexpr int kWords = kKeys / 32;  // of a row
  static constexpr int kBytes = kTileRows * kWords * 4;
  static_assert(kTileRows * kWords <= kThreads);

  // Writes the bits of a tile: each thread reads the mask for one word. Of the block.
  REGARD_DEVICE static MaskedTile classify(const AttentionProblem& problem, const Entry& entry,
                                           const RowTable& rows, int row_count, unsigned char* bits,
                                           std::int32_t first_key) {
    const int word = static_cast<int>(threadIdx.x), row_number = word / kWords;
    const std::int32_t begin = first_key + word % kWords * 32;
    std::uint32_t seen = 0;
    bool is_complete = true;
    if (word < kTileRows * kWords) {
      const TileRow row = rows.row(row_number);
      const unsigned char* mask = static_cast<const unsigned char*>(problem.mask.data) +
                                  offset_of_row(problem, problem.mask, entry, row.head, row.query);
      const std::int32_t last = row_number < row_count ? entry.keys.end - begin : 0;
#pragma unroll 4
      for (int i = 0; i < 32; ++i) {
        if (i < entry.keys.begin - begin || i >= last) continue;
        const bool is_seen = mask[(static_cast<std::int64_t>(begin) + i) * problem.mask.column_stride] != 0;
        seen |= static_cast<std::uint32_t>(is_seen) << i;
        is_complete = is_complete && is_seen;
      }
    }
    if (word < kTileRows * kWords) store_shared(bits + word * 4, seen);
    if (!any_thread(seen != 0)) return MaskedTile::hidden;
    return any_thread(!is_complete) ? MaskedTile::mixed : MaskedTile::visible;
  }
};

}  // namespace regard::cuda
