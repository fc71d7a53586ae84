// A tile of 64 rows and 32 keys in float32, computed with multiplications and additions. A thread
// has 4 rows, and for each of them 4 keys or 4 columns of a panel. The 8 threads that share rows
// are adjacent in a warp. Sums are computed first within a panel or a tile, and then over them.
#pragma once

#include "panels.hpp"

namespace regard::cuda {

struct Float32Tile {
  using Type = Float32;
  static constexpr int kKeys = 32;
  static constexpr int kRowsOfThread = 4;
  static constexpr int kLanesOfRow = 8;
  static constexpr int kScores = 4;
  static constexpr int kPanelColumns = 4;
  static constexpr int kScratchBytes = kTileRows * kPanelBytes;  // the weights of a tile

  REGARD_DEVICE static int place() { return static_cast<int>(threadIdx.x) % kLanesOfRow; }
  REGARD_DEVICE static int first_row() { return static_cast<int>(threadIdx.x) / 32 * 16; }
  REGARD_DEVICE static int row(int r) {
    return static_cast<int>(threadIdx.x) / kLanesOfRow * kRowsOfThread + r;
  }
  // 8 threads read the same piece of 8 consecutive rows, which are in different banks.
  REGARD_DEVICE static int first_key() { return place(); }
  REGARD_BOTH static constexpr int key_step(int s) { return s * kLanesOfRow; }
  REGARD_DEVICE static int first_column() { return place() * kPanelColumns; }
  REGARD_BOTH static constexpr int column_step(int c) { return c; }
  REGARD_DEVICE static int piece_of_column(int) { return place(); }
  REGARD_DEVICE static int byte_of_column(int c) { return c * 4; }

  REGARD_DEVICE static void add_products(float (&products)[kRowsOfThread][kScores],
                                         const unsigned char* queries, const unsigned char* keys) {
    float sums[kRowsOfThread][kScores] = {};
    // If unrolled, addresses and loads would take the registers that the output needs.
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece) {
      Words4 query[kRowsOfThread], key_piece[kScores];
#pragma unroll
      for (int r = 0; r < kRowsOfThread; ++r) query[r] = load_shared<Words4>(queries + piece_at(row(r), piece));
#pragma unroll
      for (int s = 0; s < kScores; ++s)
        key_piece[s] = load_shared<Words4>(keys + piece_at(first_key() + key_step(s), piece));
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int r = 0; r < kRowsOfThread; ++r)
#pragma unroll
          for (int s = 0; s < kScores; ++s)
            sums[r][s] += float_of_bits(query[r].word[e]) * float_of_bits(key_piece[s].word[e]);
    }
    add(products, sums);
  }

  // The weights of a tile in shared memory: piece p of a row contains the weights of the keys p, p
  // + 8, p + 16 and p + 24. They are read after the barrier of the next panel.
  using Weights = const unsigned char*;

  REGARD_DEVICE static Weights pack_weights(const float (&weights)[kRowsOfThread][kScores],
                                            unsigned char* scratch) {
#pragma unroll
    for (int r = 0; r < kRowsOfThread; ++r) {
      Words4 piece;
#pragma unroll
      for (int s = 0; s < kScores; ++s) piece.word[s] = bits_of_float(weights[r][s]);
      store_shared(scratch + row(r) * kPanelBytes + place() * kPieceBytes, piece);
    }
    return scratch;
  }

  REGARD_DEVICE static void add_values(float (&output)[kRowsOfThread][kPanelColumns], Weights weights,
                                       const unsigned char* values) {
    float sums[kRowsOfThread][kPanelColumns] = {};
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece) {
      Words4 weight[kRowsOfThread], value[4];
#pragma unroll
      for (int r = 0; r < kRowsOfThread; ++r)
        weight[r] = load_shared<Words4>(weights + row(r) * kPanelBytes + piece * kPieceBytes);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        value[e] = load_shared<Words4>(values + piece_at(piece + e * kLanesOfRow, place()));
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int r = 0; r < kRowsOfThread; ++r) {
          const float factor = float_of_bits(weight[r].word[e]);
#pragma unroll
          for (int c = 0; c < kPanelColumns; ++c) sums[r][c] += factor * float_of_bits(value[e].word[c]);
        }
    }
    add(output, sums);
  }

 private:
  template <int kColumns>
  REGARD_DEVICE static void add(float (&to)[kRowsOfThread][kColumns],
                                const float (&sums)[kRowsOfThread][kColumns]) {
#pragma unroll
    for (int r = 0; r < kRowsOfThread; ++r)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) to[r][c] += sums[r][c];
  }
};

}  // namespace regard::cuda
