// Handles NaN and infinite values in a tile in which some keys are hidden from some rows. The
// product with the weights would multiply them by the weight 0 of a row that must not see them. So
// they are removed from the panel, and added to the output of the rows that do see them.
#pragma once

#include "panels.hpp"

namespace regard::cuda {

// Whether the panel contains any. Of the block.
template <class Tile>
REGARD_DEVICE bool has_specials(const unsigned char* panel) {
  using T = typename Tile::Type;
  bool found = false;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x) * kPieceBytes; at < Tile::kKeys * kPanelBytes;
       at += kThreads * kPieceBytes) {
    const Words4 piece = load_shared<Words4>(panel + at);
#pragma unroll
    for (int i = 0; i < kPieceBytes / T::kBytes; ++i)
      found = found || is_special<T>(element_of<T>(piece.word[i * T::kBytes / 4], i % (4 / T::kBytes)));
  }
  return any_thread(found);
}

// The keys of a tile that a row sees, one bit each; each lane contributes the keys of its scores.
template <class Tile>
REGARD_DEVICE std::uint64_t keys_seen(std::uint32_t seen, int r) {
  std::uint32_t words[2] = {};
#pragma unroll
  for (int s = 0; s < Tile::kScores; ++s)
    words[s * (Tile::kKeys / 32) / Tile::kScores] |= (seen >> (r * Tile::kScores + s) & 1)
                                                     << (Tile::first_key() + Tile::key_step(s) % 32);
#pragma unroll
  for (int lanes = 1; lanes < Tile::kLanesOfRow; lanes *= 2)
#pragma unroll
    for (int w = 0; w < 2; ++w) words[w] |= shuffle_xor(words[w], lanes);
  return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
}

// `seen` has a bit for each score of the thread's rows. Of the block.
template <class Tile>
REGARD_DEVICE void take_specials(float (&output)[Tile::kRowsOfThread][Tile::kPanelColumns],
                                 std::uint32_t seen, unsigned char* panel, bool has_rows) {
  using T = typename Tile::Type;
  if (has_rows) {
    std::uint64_t keys[Tile::kRowsOfThread];
#pragma unroll
    for (int r = 0; r < Tile::kRowsOfThread; ++r) keys[r] = keys_seen<Tile>(seen, r);
#pragma unroll 1
    for (int key = 0; key < Tile::kKeys; ++key)
#pragma unroll
      for (int c = 0; c < Tile::kPanelColumns; ++c) {
        const std::uint32_t word = load_shared<std::uint32_t>(panel + piece_at(key, Tile::piece_of_column(c)) +
                                                              Tile::byte_of_column(c));
        const std::uint32_t element = element_of<T>(word, c % (4 / T::kBytes));
        if (!is_special<T>(element)) continue;
#pragma unroll
        for (int r = 0; r < Tile::kRowsOfThread; ++r)
          if ((keys[r] >> key & 1) != 0) output[r][c] += float_of(T(), element);
      }
  }
  block_barrier();
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x) * kPieceBytes; at < Tile::kKeys * kPanelBytes;
       at += kThreads * kPieceBytes) {
    Words4 piece = load_shared<Words4>(panel + at);
#pragma unroll
    for (int i = 0; i < kPieceBytes / T::kBytes; ++i) {
      std::uint32_t& word = piece.word[i * T::kBytes / 4];
      const int within = i % (4 / T::kBytes);
      if (is_special<T>(element_of<T>(word, within)))
        word &= T::kBytes == 4 ? 0 : within == 0 ? 0xFFFF0000u : 0x0000FFFFu;
    }
    store_shared(panel + at, piece);
  }
  block_barrier();
}

}  // namespace regard::cuda
