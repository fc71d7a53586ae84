// The loops of a decode: over rows, whose number is known at run time, as code compiled for it, and over
// the steps of a block that some row sees.
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

// Calls `body` with the first key, in the block, of each step whose bit is set.
template <class Shape, class Body>
REGARD_INLINE void for_steps(std::uint32_t steps, Body body) {
  for (; steps != 0; steps &= steps - 1) body(__builtin_ctz(steps) * kDecodeStep<Shape>);
}

}  // namespace
}  // namespace regard
