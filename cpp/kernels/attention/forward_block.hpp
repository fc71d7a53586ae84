// A block of keys and values. Its memory is accessed only on demand, so that a block that no strip
// sees costs nothing.
#pragma once

#include "forward_workspace.hpp"

namespace regard {
namespace {

template <class T>
struct ForwardBlock : KeySpan {
  TileRows<T> keys{};
  TileRows<T> values{};
  // In the layout of copy_group_scales; null if there are no groups.
  const T* key_groups = nullptr;
  const T* value_groups = nullptr;
  std::ptrdiff_t group_stride = 0;
  int values_are_finite = -1;  // -1 until computed
};

template <class T>
REGARD_INLINE bool all_values_are_finite(ForwardBlock<T>& block, std::int64_t value_dim) {
  if (block.values_are_finite < 0)
    block.values_are_finite =
        block.values.scales || block.key_groups ||
        rows_are_finite(block.values.from, block.values.stride, block.count, value_dim);
  return block.values_are_finite != 0;
}

}  // namespace
}  // namespace regard
