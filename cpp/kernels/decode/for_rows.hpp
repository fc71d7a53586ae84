// A decode's number of rows, known at run time, as code compiled for it.
#pragma once

#include "workspace.hpp"

namespace regard {
namespace {

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Rows computed together: the rows at hand and, up to the next of these, rows of zeros.
template <class Body>
REGARD_INLINE auto for_rows(int rows, Body body) {
  if (rows == 1) return body(Constant<1>{});
  if (rows == 2) return body(Constant<2>{});
  if (rows <= 4) return body(Constant<4>{});
  return body(Constant<kDecodeRows>{});
}

}  // namespace
}  // namespace regard
