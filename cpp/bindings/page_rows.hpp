// Keys and values in the pages of a cache, as the calls that attend to them and store new ones find them.
#pragma once

#include <pybind11/pybind11.h>

#include "arrays.hpp"

namespace regard {

// Where new rows go: the table of pages, (batch, pages of an entry).
struct PageTable {
  explicit PageTable(py::handle object);

  py::array array;
  const std::int32_t* data;
  std::int64_t entries;
  std::int64_t columns;
  std::int64_t stride;  // from one entry's line to the next
};

// Arrays of shape (pages, kv_heads, page_rows, dim), and of what int8 is multiplied by, without `dim`.
// They are looked at once: a cache makes such an object whenever its memory moves. Keys of int8 are rotated unless
// they are upright.
class PageRows {
 public:
  PageRows(py::handle key, py::handle value, py::handle key_scales, py::handle value_scales, bool are_keys_upright);

  bool is_int8() const { return key.element == Element::int8; }
  std::int64_t pages() const { return key.shape[0]; }
  std::int64_t page_rows() const { return key.shape[2]; }

  // Stores the keys and values of new tokens of all batch entries, at most `most`. Returns how many, or
  // -1 where these are not plain arrays of the right shapes, where there are more, or where a finite
  // number became infinite: the caller then finds out what to do, and nothing that counts was changed.
  std::int64_t store_plain(py::handle pages, py::handle starts, std::int64_t most, py::handle new_key,
                           py::handle new_value) const;

  // The same for packed tokens, (tokens, kv_heads, dim), which begin where `token_starts` says. Returns how many each
  // entry got: an int for all, or an array; None instead of -1.
  py::object store_packed(py::handle pages, py::handle starts, std::int64_t most, py::handle new_key,
                          py::handle new_value, py::handle token_starts) const;

  // Stores `counts` rows of each batch entry. Those of all entries follow one another in a single entry of the arrays
  // if they are packed. Returns false where a finite number became infinite.
  bool store(py::handle pages, py::handle starts, py::handle counts, bool is_packed, py::handle new_key,
             py::handle new_value, py::handle new_key_scales, py::handle new_value_scales) const;

  ArrayView key, value, key_scales, value_scales;
  bool are_keys_upright;
};

}  // namespace regard
