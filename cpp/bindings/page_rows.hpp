// Keys and values in the pages of a cache, for the calls that attend to them or store new ones.
#pragma once

#include <pybind11/pybind11.h>

#include "arrays.hpp"

namespace regard {

// The table of pages, (batch, pages of an entry), which determines where new rows are stored.
struct PageTable {
  explicit PageTable(py::handle object);

  py::array array;
  const std::int32_t* data;
  std::int64_t entries;
  std::int64_t columns;
  std::int64_t stride;  // from one entry's row to the next
};

// Arrays of shape (pages, kv_heads, page_rows, dim), and the scales of fewer bits:
//
//   int8, float8 (as uint8)     (pages, kv_heads, page_rows), of float32: the factor of a row
//   q4_1 (as uint8, dim / 2)    (pages, kv_heads, page_rows, dim / 16), of float16: scale and minimum of each group
//
// The arrays are checked once: a cache makes a new object whenever its memory moves. Keys of fewer
// bits are rotated unless they are upright.
class PageRows {
 public:
  PageRows(py::handle key, py::handle value, py::handle key_scales, py::handle value_scales, bool are_keys_upright);

  // The element type of keys and values, whose arrays `key` and `value` may be arrays of bytes.
  Element element() const { return key_scales.element == Element::float16 ? Element::q4_1 : key.element; }
  std::int64_t head_dim() const { return numbers_in(key); }
  std::int64_t value_dim() const { return numbers_in(value); }
  std::int64_t pages() const { return key.shape[0]; }
  std::int64_t page_rows() const { return key.shape[2]; }

  // Stores the keys and values of new tokens of all batch entries, at most `most`. Returns their
  // number, or -1 if the arrays are not plain arrays of the right shapes, if there are more tokens,
  // or if a finite number became infinite. The caller then decides what to do; no visible state has
  // changed.
  std::int64_t store_plain(py::handle pages, py::handle starts, std::int64_t most, py::handle new_key,
                           py::handle new_value) const;

  // The same for packed tokens, (tokens, kv_heads, dim), whose entries begin at `token_starts`.
  // Returns the number of new tokens of each entry: an int for all, or an array; None instead of
  // -1.
  py::object store_packed(py::handle pages, py::handle starts, std::int64_t most, py::handle new_key,
                          py::handle new_value, py::handle token_starts) const;

  // Stores `counts` rows of each batch entry. If they are packed, the rows of all entries are
  // stored one after another in a single entry of the arrays. Returns false if a finite number
  // became infinite.
  bool store(py::handle pages, py::handle starts, py::handle counts, bool is_packed, py::handle new_key,
             py::handle new_value, py::handle new_key_scales, py::handle new_value_scales) const;

  ArrayView key, value, key_scales, value_scales;
  bool are_keys_upright;

 private:
  std::int64_t numbers_in(const ArrayView& rows) const {
    return element() == Element::q4_1 ? 2 * rows.size(1) : rows.size(1);
  }
};

}  // namespace regard
