// A bool mask that lists what is seen, in memory proportional to it.
//
// The queries of a row see the same spans of keys, but for a span with bits of its own for each of them:
//
//   Ranges    a row is one query                  spans are what it sees
//   Blocks    a row is a row of blocks            spans are runs of whole blocks, and blocks with bits
#pragma once

#include <cstdint>

#include "operand.hpp"

namespace regard {

constexpr std::int64_t kWholeSpan = -1;  // every query of the row sees all of its keys

struct MaskSpan {
  std::int64_t begin;  // a key
  std::int64_t end;
  std::int64_t block;  // the number of its bits, or kWholeSpan
};

struct SparseMask {
  // Of int64, (batch..., head, row): where a row's spans begin in `spans`; the next element is where they end. The
  // row axis is contiguous. Spans of a row are sorted, disjoint and not empty.
  Operand starts;
  const MaskSpan* spans;
  // [block][query of the row][bytes_of_query]: bit k % 8 of byte k / 8 says whether the query sees key begin + k.
  const unsigned char* bits;
  std::int64_t bytes_of_query;
  std::int64_t row_queries;   // queries of a row
  std::int64_t query_stride;  // 1, or 0 where all queries see what the first one sees
  // Query 0 and key 0 of the problem, among those that rows and spans count.
  std::int64_t first_query;
  std::int64_t first_key;
  std::int64_t kv_len;  // keys of the problem from this one on are hidden
};

// For an operand's element type.
static_assert(sizeof(double) == sizeof(std::int64_t), "row starts are described as float64");

}  // namespace regard
