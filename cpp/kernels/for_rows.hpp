// Calls code that is compiled for a small number of rows, which is known only at run time.
#pragma once

#include "../simd/vec.hpp"

namespace regard {
namespace {

constexpr int kFewRows = 8;

// Calls `body` with the number of rows to compute: the given number, rounded up to one of these
// numbers. The additional rows are zeros.
template <class Body>
REGARD_INLINE auto for_rows(std::int64_t rows, Body body) {
  if (rows == 1) return body(Constant<1>{});
  if (rows == 2) return body(Constant<2>{});
  if (rows <= 4) return body(Constant<4>{});
  return body(Constant<kFewRows>{});
}

}  // namespace
}  // namespace regard
