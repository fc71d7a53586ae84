// A few rows, whose number is known at run time, as code that is compiled for it.
#pragma once

#include "../simd/constant.hpp"
#include "../simd/vec.hpp"

namespace regard {
namespace {

constexpr int kFewRows = 8;

// Rows computed together: those at hand and, up to the next of these numbers, rows of zeros.
template <class Body>
REGARD_INLINE auto for_rows(std::int64_t rows, Body body) {
  if (rows == 1) return body(Constant<1>{});
  if (rows == 2) return body(Constant<2>{});
  if (rows <= 4) return body(Constant<4>{});
  return body(Constant<kFewRows>{});
}

}  // namespace
}  // namespace regard
