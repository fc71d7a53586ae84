// Keys and values in the pages of a cache, for the calls that attend to them or store new ones.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

#include "../dispatch/page_table.hpp"
#include "arrays.hpp"

namespace regard {

// Arrays of shape (pages, kv_heads, page_rows, dim), and the scales of fewer bits:
//
//   int8, float8 (as uint8)     (pages, kv_heads, page_rows), of float32: the factor of a row
//   q4_1 (as uint8, dim / 2)    (pages, kv_heads, page_rows, dim / 16), of float16: scale and minimum of each group
//
// The arrays are checked once: a layer makes a new object whenever its pages move. Keys of fewer bits
// are rotated unless they are upright.
class PageRows {
 public:
  PageRows(py::handle key, py::handle value, py::handle key_scales, py::handle value_scales, bool are_keys_upright,
           bool are_e5m2 = false);

  // The element type of keys and values, whose arrays `key` and `value` may be arrays of bytes.
  Element element() const { return key_scales.element == Element::float16 ? Element::q4_1 : key.element; }
  std::int64_t head_dim() const { return numbers_in(key); }
  std::int64_t value_dim() const { return numbers_in(value); }
  std::int64_t pages() const { return key.shape[0]; }
  std::int64_t page_rows() const { return key.shape[2]; }

  // Whether new rows of keys or values, or of their scales, can be stored as they are. They are
  // (entries, kv_heads, new, dim), without the first axis if there is one entry, or packed
  // (tokens, kv_heads, dim). Scales of rows have no last axis.
  bool takes(const ArrayView& given, const ArrayView& own, std::int64_t entries, bool is_packed) const;

  // Stores `counts` rows of each entry; all views but the first may have no array. `packed` are
  // the first rows of the entries, or null. Returns false if a finite number became infinite.
  bool store(const PageTable::Place& place, const Counts& counts, const std::int64_t* packed,
             const std::array<ArrayView, 4>& given) const;

  ArrayView key, value, key_scales, value_scales;
  bool are_keys_upright;

 private:
  std::int64_t numbers_in(const ArrayView& rows) const {
    return element() == Element::q4_1 ? 2 * rows.size(1) : rows.size(1);
  }
};

}  // namespace regard
