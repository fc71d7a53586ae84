// A tile of 64 rows and 64 keys in 16 bits on the tensor cores. Each of four warps has 16 rows. A
// thread has the elements of the instruction's accumulators: two rows, and two adjacent columns of
// every 8.
#pragma once

#include "panels.hpp"

namespace regard::cuda {

template <class T>
struct TensorCoreTile {
  using Type = T;
  static constexpr int kKeys = 64;
  static constexpr int kRowsOfThread = 2;
  static constexpr int kLanesOfRow = 4;
  static constexpr int kScores = 16;        // of a row, in a thread
  static constexpr int kPanelColumns = 16;  // likewise, of a panel of values
  static constexpr int kScratchBytes = 0;

  REGARD_DEVICE static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  REGARD_DEVICE static int first_row() { return static_cast<int>(threadIdx.x) / 32 * 16; }
  REGARD_DEVICE static int row(int r) { return first_row() + r * 8 + lane() / 4; }
  // Keys of scores and columns of output: a thread's first one, and the distances of the others
  // from it.
  REGARD_DEVICE static int first_key() { return lane() % 4 * 2; }
  REGARD_BOTH static constexpr int key_step(int s) { return s / 2 * 8 + s % 2; }
  REGARD_DEVICE static int first_column() { return first_key(); }
  REGARD_BOTH static constexpr int column_step(int c) { return key_step(c); }
  // The location of the word that contains an element of a panel: its piece, and the byte within
  // it.
  REGARD_DEVICE static int piece_of_column(int c) { return c / 2; }
  REGARD_DEVICE static int byte_of_column(int) { return first_column() * T::kBytes; }

  // The products of 16 rows with the keys of a panel, 16 columns of both at a time.
  REGARD_DEVICE static void add_products(float (&products)[kRowsOfThread][kScores],
                                         const unsigned char* queries, const unsigned char* keys) {
    const int matrix = lane() / 8, row = lane() % 8;
    // If unrolled further, addresses would take the registers that the output needs.
#pragma unroll 2
    for (int i = 0; i < kPieces / 2; ++i) {
      const Words4 query = load_matrices<false>(
          queries + piece_at(first_row() + matrix % 2 * 8 + row, 2 * i + matrix / 2));
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        const Words4 key =
            load_matrices<false>(keys + piece_at(j * 16 + matrix / 2 * 8 + row, 2 * i + matrix % 2));
        add(products, 2 * j, query.word, key.word[0], key.word[1]);
        add(products, 2 * j + 1, query.word, key.word[2], key.word[3]);
      }
    }
  }

  // Weights in 16 bits, as the instruction's left operand for 16 keys at a time.
  struct Weights {
    std::uint32_t fragment[kKeys / 16][4];
  };

  REGARD_DEVICE static Weights pack_weights(const float (&weights)[kRowsOfThread][kScores], unsigned char*) {
    Weights packed;
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      packed.fragment[i][0] = pack<T>(weights[0][4 * i], weights[0][4 * i + 1]);
      packed.fragment[i][1] = pack<T>(weights[1][4 * i], weights[1][4 * i + 1]);
      packed.fragment[i][2] = pack<T>(weights[0][4 * i + 2], weights[0][4 * i + 3]);
      packed.fragment[i][3] = pack<T>(weights[1][4 * i + 2], weights[1][4 * i + 3]);
    }
    return packed;
  }

  // output += weights values, for the columns of a panel.
  REGARD_DEVICE static void add_values(float (&output)[kRowsOfThread][kPanelColumns], const Weights& weights,
                                       const unsigned char* values) {
    const int matrix = lane() / 8, row = lane() % 8;
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i)
#pragma unroll
      for (int j = 0; j < kPieces / 2; ++j) {
        const Words4 value =
            load_matrices<true>(values + piece_at(i * 16 + matrix % 2 * 8 + row, 2 * j + matrix / 2));
        add(output, 2 * j, weights.fragment[i], value.word[0], value.word[1]);
        add(output, 2 * j + 1, weights.fragment[i], value.word[2], value.word[3]);
      }
  }

 private:
  template <int kColumns>
  REGARD_DEVICE static void add(float (&sums)[kRowsOfThread][kColumns], int block,
                                const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    multiply_add<T>(sums[0][2 * block], sums[0][2 * block + 1], sums[1][2 * block], sums[1][2 * block + 1], a,
                    b0, b1);
  }
};

}  // namespace regard::cuda
