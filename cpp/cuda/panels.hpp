// Rows of queries, keys and values in shared memory, as panels: 128 contiguous bytes of each row,
// which are 64 16-bit or 32 32-bit elements. A row consists of 8 pieces of 16 bytes, and piece p of
// row r is stored at place p ^ (r % 8), so that neither the 8 pieces of one row nor the same piece
// of 8 consecutive rows share a bank.
#pragma once

#include "geometry.hpp"

namespace regard::cuda {

constexpr int kPanelBytes = 128;  // of a row
constexpr int kPieceBytes = 16;
constexpr int kPieces = kPanelBytes / kPieceBytes;

// At least one panel, of zeros if a row has no bytes.
REGARD_BOTH constexpr int panels_of(int bytes) {
  return bytes == 0 ? 1 : (bytes + kPanelBytes - 1) / kPanelBytes;
}

REGARD_DEVICE int piece_at(int row, int piece) {
  return row * kPanelBytes + (piece ^ (row % kPieces)) * kPieceBytes;
}

// The number of the 16 bytes at `begin` that a row of `row_bytes` fills.
REGARD_DEVICE int bytes_of_piece(int begin, int row_bytes) {
  const int left = row_bytes - begin;
  return left < 0 ? 0 : left > kPieceBytes ? kPieceBytes : left;
}

// Fills one piece of a panel element by element, if rows do not begin at multiples of 16 bytes.
template <class T>
REGARD_DEVICE void gather_piece(unsigned char* to, const unsigned char* from, int bytes) {
  Words4 piece{};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (T::kBytes == 4) {
      if (w * 4 < bytes) piece.word[w] = *reinterpret_cast<const std::uint32_t*>(from + w * 4);
    } else {
      if (w * 4 < bytes) piece.word[w] = *reinterpret_cast<const std::uint16_t*>(from + w * 4);
      if (w * 4 + 2 < bytes)
        piece.word[w] |= static_cast<std::uint32_t>(*reinterpret_cast<const std::uint16_t*>(from + w * 4 + 2))
                         << 16;
    }
  }
  store_shared(to, piece);
}

// The address of a head's first row of keys or values.
template <class T>
REGARD_DEVICE const unsigned char* first_key_row(const AttentionProblem& problem, const Tensor& tensor,
                                                 const Place& place) {
  return static_cast<const unsigned char*>(tensor.data) +
         offset_of(problem, tensor, place.entry, place.entry.first_key, place.kv_head) * T::kBytes;
}

// Starts to load one panel of the rows [first_key, first_key + kRows) that are before `end`.
template <class T, int kRows>
REGARD_DEVICE void load_key_panel(unsigned char* panel, const unsigned char* rows, std::int64_t row_stride,
                                  std::int32_t columns, bool is_aligned, std::int32_t first_key,
                                  std::int32_t end, int panel_number) {
  constexpr int kRowsAtOnce = kThreads / kPieces;
  const int first_row = static_cast<int>(threadIdx.x) / kPieces, piece = static_cast<int>(threadIdx.x) % kPieces;
  const int begin = panel_number * kPanelBytes + piece * kPieceBytes;
  const int bytes = bytes_of_piece(begin, columns * T::kBytes);
  const std::int64_t row_bytes = row_stride * T::kBytes;
  const unsigned char* from = rows + (static_cast<std::int64_t>(first_key) + first_row) * row_bytes + begin;
  unsigned char* to = panel + piece_at(first_row, piece);
  static_assert(kRowsAtOnce % kPieces == 0, "so that a thread's rows have their pieces at one place");
  if (is_aligned) {
    // In float32, the output needs the registers that the addresses would take.
    [[maybe_unused]] constexpr int kUnrolled = T::kBytes == 4 ? 1 : kRows / kRowsAtOnce;
#pragma unroll kUnrolled
    for (int step = 0; step < kRows / kRowsAtOnce; ++step) {
      const bool exists = first_row + step * kRowsAtOnce < end - first_key && bytes > 0;
      copy_async(to + step * kRowsAtOnce * kPanelBytes, exists ? from + step * kRowsAtOnce * row_bytes : rows,
                 exists ? bytes : 0);
    }
  } else {
#pragma unroll 1
    for (int step = 0; step < kRows / kRowsAtOnce; ++step)
      gather_piece<T>(to + step * kRowsAtOnce * kPanelBytes, from + step * kRowsAtOnce * row_bytes,
                      first_row + step * kRowsAtOnce < end - first_key ? bytes : 0);
  }
}

// Starts to load all panels of a block's query rows.
template <class T>
REGARD_DEVICE void load_queries(unsigned char* panels, const Arguments& arguments, const Place& place) {
  const AttentionProblem& problem = arguments.problem;
  const Tensor& query = problem.query;
  const int row_bytes = problem.head_dim * T::kBytes, panel_count = panels_of(row_bytes);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const unsigned char* from = static_cast<const unsigned char*>(query.data);
    if (row < place.rows)
      from += (offset_of(problem, query, place.entry, place.entry.first_query, place.head(row)) +
               place.query(row) * query.row_stride) *
              T::kBytes;
#pragma unroll 1
    for (int panel = 0; panel < panel_count; ++panel) {
      const int begin = panel * kPanelBytes + piece * kPieceBytes;
      const int bytes = row < place.rows ? bytes_of_piece(begin, row_bytes) : 0;
      unsigned char* to = panels + panel * kTileRows * kPanelBytes + piece_at(row, piece);
      if (arguments.query_is_aligned)
        copy_async(to, bytes > 0 ? from + begin : from, bytes);
      else
        gather_piece<T>(to, from + begin, bytes);
    }
  }
}

}  // namespace regard::cuda
