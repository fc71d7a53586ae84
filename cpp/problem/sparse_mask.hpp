// A bool mask that lists the visible keys, in memory proportional to their number.
//
// The queries of a row see the same spans of keys, except for spans that have separate bits for
// each query:
//
//   Ranges    a row is one query             spans are the keys it sees
//   Blocks    a row is a row of blocks       spans are runs of whole blocks or blocks with bits
#pragma once

#include <cstdint>

#include "operand.hpp"

namespace regard {

constexpr std::int64_t kWholeSpan = -1;  // every query of the row sees all keys of the span

struct MaskSpan {
  std::int64_t begin;  // a key
  std::int64_t end;
  std::int64_t block;  // index of the span's bits, or kWholeSpan
};

struct SparseMask {
  // int64, (batch..., head, row): the index in `spans` at which a row's spans begin. The next
  // element is the index at which they end. The row axis is contiguous. The spans of a row are
  // sorted, disjoint and not empty.
  Operand starts;
  const MaskSpan* spans;
  // [block][query of the row][bytes_of_query]: bit k % 8 of byte k / 8 tells whether the query sees
  // key begin + k.
  const unsigned char* bits;
  std::int64_t bytes_of_query;
  std::int64_t row_queries;   // number of queries in a row
  std::int64_t query_stride;  // 1, or 0 if all queries see the same keys as the first query
  // The indices of the problem's query 0 and key 0 in the numbering of rows and spans.
  std::int64_t first_query;
  std::int64_t first_key;
  std::int64_t kv_len;  // keys of the problem from this index on are hidden
  bool is_scattered;  // a query has many spans, as if an index had selected its keys
};

// Needed for the element type of `starts`.
static_assert(sizeof(double) == sizeof(std::int64_t), "row starts are described as float64");

}  // namespace regard
