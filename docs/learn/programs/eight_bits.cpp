// The scores of a strip of queries in 8-bit integers and in float32.
#include <cstdint>
#include <cstring>

#include "bytes.hpp"

extern "C" int queries_of_a_strip() { return kQueries; }
extern "C" int has_instruction() { return kHasInstruction; }

// `query` has kQueries rows; scores[j * kQueries + lane] is the exact sum for key j.
extern "C" void integer_scores(const int8_t* query, const int8_t* key, int* scores,
                               int length) {
  static int8_t packed[kDim / 4][kQueries][4];  // four dimensions of a query share a lane
  for (int d = 0; d < kDim; ++d)
    for (int lane = 0; lane < kQueries; ++lane)
      packed[d / 4][lane][d % 4] = int8_t(query[lane * kDim + d] + kOffset);
  for (int j = 0; j < length; j += kRows) {
    Ints tile[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int sum = 0;
      for (int d = 0; d < kDim; ++d) sum += key[(j + r) * kDim + d];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) tile[r][v] = Ints{} - kOffset * sum;
    }
    for (int i = 0; i < kDim / 4; ++i) {
      Ints right[kVectors];
      std::memcpy(right, packed[i], sizeof right);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int four;
        std::memcpy(&four, key + (j + r) * kDim + 4 * i, 4);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) tile[r][v] = dot(tile[r][v], right[v], Ints{} + four);
      }
    }
    std::memcpy(scores + j * kQueries, tile, sizeof tile);
  }
}

extern "C" void float_scores(const float* query, const float* key, float* scores, int length) {
  static float packed[kDim * kQueries];
  for (int d = 0; d < kDim; ++d)
    for (int lane = 0; lane < kQueries; ++lane)
      packed[d * kQueries + lane] = query[lane * kDim + d];
  for (int j = 0; j < length; j += kRows) {
    Tile tile{};
    multiply<kVectors>(tile, key + j * kDim, kDim, 1, packed, kDim);
    store_tile<kVectors>(tile, scores + j * kQueries);
  }
}
