// Positions in arrays: the batch entry that a block works on, its rows of arrays, and the keys that
// a query sees by its position. Key positions have 32 bits. Their sums are computed in 64 bits,
// once for each row.
#pragma once

#include "arguments.hpp"
#include "instructions.hpp"

namespace regard::cuda {

struct Keys {  // [begin, end)
  std::int32_t begin;
  std::int32_t end;
};

// One batch entry.
struct Entry {
  std::int32_t number;
  std::int32_t q_len;
  std::int64_t first_query;  // rows of the sequences before it, if ragged
  std::int64_t first_key;
  Keys keys;  // valid keys
  std::int64_t query_offset;
};

REGARD_DEVICE std::int32_t number_of(const PerEntry& numbers, std::int32_t entry) {
  return numbers.data ? numbers.data[entry] : numbers.all;
}

REGARD_DEVICE std::int32_t clamp(std::int64_t value, const Keys& keys) {
  return static_cast<std::int32_t>(value < keys.begin ? keys.begin : value > keys.end ? keys.end : value);
}

REGARD_DEVICE Entry locate_entry(const AttentionProblem& problem, std::int32_t number) {
  Entry entry{number, problem.q_len, 0, 0, {0, problem.kv_len}, 0};
  if (problem.query_starts) {
    entry.first_query = problem.query_starts[number];
    entry.q_len = problem.query_starts[number + 1] - problem.query_starts[number];
    entry.first_key = problem.key_starts[number];
    entry.keys.end = problem.key_starts[number + 1] - problem.key_starts[number];
  }
  entry.keys.end = clamp(number_of(problem.key_lengths, number), entry.keys);
  entry.query_offset = problem.query_offset_is_end
                           ? static_cast<std::int64_t>(entry.keys.end) - entry.q_len
                           : number_of(problem.query_offset, number);
  entry.keys.begin = clamp(number_of(problem.left_padding, number), entry.keys);
  return entry;
}

// The offset of a head's first row in an array, in elements. Ragged sequences are stored one after
// another in one entry.
REGARD_DEVICE std::int64_t offset_of(const AttentionProblem& problem, const Tensor& tensor,
                                     const Entry& entry, std::int64_t first_row, std::int32_t head) {
  const std::int64_t before =
      problem.query_starts ? first_row * tensor.row_stride : entry.number * tensor.batch_stride;
  return before + head * tensor.head_stride;
}

// The work of one block: some rows of a key head, with all keys or the keys of one chunk.
struct Place {
  Entry entry;
  std::int32_t kv_head;
  std::int32_t group;
  std::int64_t first_row;
  std::int32_t rows;  // 0 or less in a tile beyond the sequence's last row
  std::int32_t chunk;

  REGARD_DEVICE std::int32_t query(std::int32_t row) const {
    return static_cast<std::int32_t>((first_row + row) / group);
  }
  REGARD_DEVICE std::int32_t head(std::int32_t row) const {
    return kv_head * group + static_cast<std::int32_t>((first_row + row) % group);
  }
};

// The last rows of a head come first: they have the most keys if attention is causal.
REGARD_DEVICE Place locate_block(const Arguments& arguments) {
  const AttentionProblem& problem = arguments.problem;
  std::uint32_t index = blockIdx.x;
  Place place;
  place.chunk = static_cast<std::int32_t>(index % arguments.chunks);
  index /= arguments.chunks;
  const std::int64_t tile = arguments.row_tiles - 1 - index % arguments.row_tiles;
  index /= arguments.row_tiles;
  place.kv_head = static_cast<std::int32_t>(index % problem.kv_heads);
  place.entry = locate_entry(problem, static_cast<std::int32_t>(index / problem.kv_heads));
  place.group = problem.heads / problem.kv_heads;
  place.first_row = tile * kTileRows;
  const std::int64_t left = static_cast<std::int64_t>(place.entry.q_len) * place.group - place.first_row;
  place.rows = static_cast<std::int32_t>(left < kTileRows ? left : kTileRows);
  return place;
}

// The keys that a query sees by its position. Both ends grow with the query.
REGARD_DEVICE Keys keys_seen_from(const AttentionProblem& problem, const Entry& entry, std::int32_t query) {
  const std::int64_t position = query + entry.query_offset;
  Keys seen = entry.keys;
  if (problem.window_left != kUnbounded) seen.begin = clamp(position - problem.window_left, entry.keys);
  if (problem.window_right != kUnbounded) seen.end = clamp(position + problem.window_right + 1, entry.keys);
  return seen;
}

}  // namespace regard::cuda
