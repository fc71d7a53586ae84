// The properties of each query row of a block, in shared memory: registers are for scores and
// output.
#pragma once

#include "geometry.hpp"

namespace regard::cuda {

struct TileRow {
  Keys seen;  // by position; none if the row does not exist
  std::int32_t query;
  std::int32_t head;
};

class RowTable {
 public:
  static constexpr int kBytes = kTileRows * 16;
  static_assert(kTileRows % 32 == 0 && kTileRows <= kThreads, "one thread per row, in whole warps");

  REGARD_DEVICE explicit RowTable(unsigned char* memory) : memory_(memory) {}

  // To be read after a barrier.
  REGARD_DEVICE void fill(const AttentionProblem& problem, const Place& place) const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kTileRows) return;
    Words4 words{};
    if (row < place.rows) {
      const std::int32_t query = place.query(row);
      const Keys seen = keys_seen_from(problem, place.entry, query);
      words.word[0] = static_cast<std::uint32_t>(seen.begin);
      words.word[1] = static_cast<std::uint32_t>(seen.end);
      words.word[2] = static_cast<std::uint32_t>(query);
      words.word[3] = static_cast<std::uint32_t>(place.head(row));
    }
    store_shared(memory_ + row * 16, words);
  }

  // Of the warp.
  REGARD_DEVICE TileRow row(int row) const {
    const Words4 words = load_shared<Words4>(memory_ + row * 16);
    return {{static_cast<std::int32_t>(words.word[0]), static_cast<std::int32_t>(words.word[1])},
            static_cast<std::int32_t>(words.word[2]),
            static_cast<std::int32_t>(words.word[3])};
  }

 private:
  unsigned char* memory_;
};

// The offset of a row, in elements, in an array with one row for each query.
REGARD_DEVICE std::int64_t offset_of_row(const AttentionProblem& problem, const Tensor& tensor,
                                         const Entry& entry, std::int32_t head, std::int32_t query) {
  return offset_of(problem, tensor, entry, entry.first_query, head) + query * tensor.row_stride;
}

}  // namespace regard::cuda
