// The rows of one array in a block of keys, for kernels that read them in whole tiles.
#pragma once

#include "key_block.hpp"

namespace regard {
namespace {

// Null where the array is not there.
template <class T>
struct BlockRows {
  const T* from;
  std::ptrdiff_t stride;
};

// The rows where they lie, if whole tiles of them can be read there, or copied.
template <class T, int kRows>
REGARD_INLINE BlockRows<T> block_rows(const Operand& operand, const void* data, std::int64_t key, int count,
                                      std::int64_t columns, std::int64_t padded_columns, T* copy) {
  if (!data) return {};
  if (reads_in_place<T>(operand) && columns == padded_columns && count % kRows == 0)
    return {static_cast<const T*>(data) + key * operand.row_stride, operand.row_stride};
  const Operand no_scales{};
  copy_rows(KvRows{operand, data, no_scales, nullptr, nullptr, 0, {}}, key, count, columns, copy,
            round_up(count, kRows), padded_columns);
  return {copy, padded_columns};
}

}  // namespace
}  // namespace regard
