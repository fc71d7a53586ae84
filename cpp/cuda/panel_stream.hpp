// The panels that a block reads, in order: the panels of a tile's keys, then of its values, then
// the same for the next tile. They pass through a ring of three in shared memory, so that two are
// being loaded while one is used:
//
//   next_panel   wait for panel n; a barrier, after which all threads see it and no thread reads n - 1
//                any more; start to load n + 2 in the place of n - 1
//
// A tile has at least two panels, so the loaded panels belong to the current or the next tile, and
// two places for the bits of a mask are enough.
#pragma once

#include "mask_tiles.hpp"
#include "panels.hpp"

namespace regard::cuda {

constexpr int kStages = 3;

struct KeyTile {
  std::int32_t first_key;
  bool mask_hides;            // some of its keys from some rows
  const unsigned char* bits;  // of the mask, in that case
};

template <class Tile, bool kOptions>
class PanelStream {
  using T = typename Tile::Type;
  static constexpr int kBytes = Tile::kKeys * kPanelBytes;  // of a panel

 public:
  static constexpr int kRingBytes = kStages * kBytes;
  static constexpr int kBitsBytes = kOptions ? 2 * MaskTiles<Tile::kKeys>::kBytes : 0;

  // Starts to load the first panels of the tiles that contain `keys`.
  REGARD_DEVICE PanelStream(const Arguments& arguments, const Place& place, const Keys& keys,
                            const RowTable& rows, unsigned char* ring, unsigned char* bits)
      : arguments_(arguments), place_(place), rows_(rows),
        keys_(first_key_row<T>(arguments.problem, arguments.problem.key, place)),
        values_(first_key_row<T>(arguments.problem, arguments.problem.value, place)),
        end_(keys.end), ring_(ring), bits_(bits) {
    find_tile(keys.begin / Tile::kKeys * Tile::kKeys);
    for (int i = 0; i < kStages - 1; ++i) load_panel();
  }

  // The tile whose panels come next, or a tile at or beyond the end.
  REGARD_DEVICE KeyTile tile() const { return tile_; }

  REGARD_DEVICE unsigned char* next_panel() {
    wait_for_copies<kStages - 2>();
    block_barrier();
    load_panel();
    unsigned char* panel = ring_ + used_ * kBytes;
    used_ = used_ + 1 == kStages ? 0 : used_ + 1;
    return panel;
  }

 private:
  REGARD_DEVICE void find_tile(std::int64_t first_key) {
    bits_turn_ = !bits_turn_;
    unsigned char* bits = bits_ + bits_turn_ * MaskTiles<Tile::kKeys>::kBytes;
    tile_.bits = bits;
    tile_.mask_hides = false;
    for (; first_key < end_; first_key += Tile::kKeys) {
      tile_.first_key = static_cast<std::int32_t>(first_key);
      if (!kOptions || !arguments_.problem.mask.data) return;
      const MaskedTile kind = MaskTiles<Tile::kKeys>::classify(
          arguments_.problem, place_.entry, rows_, place_.rows, bits, tile_.first_key);
      tile_.mask_hides = kind == MaskedTile::mixed;
      if (kind != MaskedTile::hidden) return;
    }
    tile_.first_key = end_;
  }

  // Every call makes a group of copies, even an empty one, because groups are counted.
  REGARD_DEVICE void load_panel() {
    const AttentionProblem& problem = arguments_.problem;
    const int key_panels = panels_of(problem.head_dim * T::kBytes);
    if (panel_ == key_panels + panels_of(problem.value_dim * T::kBytes)) {
      find_tile(static_cast<std::int64_t>(tile_.first_key) + Tile::kKeys);
      panel_ = 0;
    }
    if (tile_.first_key < end_) {
      const bool is_key = panel_ < key_panels;
      load_key_panel<T, Tile::kKeys>(
          ring_ + loaded_ * kBytes, is_key ? keys_ : values_,
          is_key ? problem.key.row_stride : problem.value.row_stride,
          is_key ? problem.head_dim : problem.value_dim,
          is_key ? arguments_.key_is_aligned : arguments_.value_is_aligned, tile_.first_key,
          place_.entry.keys.end,
          is_key ? panel_ : panel_ - key_panels);
      loaded_ = loaded_ + 1 == kStages ? 0 : loaded_ + 1;
      ++panel_;
    }
    commit_copies();
  }

  const Arguments& arguments_;
  const Place& place_;
  const RowTable& rows_;
  const unsigned char* keys_;
  const unsigned char* values_;
  std::int32_t end_;
  unsigned char* ring_;
  unsigned char* bits_;

  KeyTile tile_;           // the tile that is being loaded
  int panel_ = 0;          // of this tile
  int loaded_ = 0;         // the place in the ring to fill next
  int used_ = 0;           // the place in the ring to read next
  bool bits_turn_ = true;  // which of the two places contains the bits
};

}  // namespace regard::cuda
