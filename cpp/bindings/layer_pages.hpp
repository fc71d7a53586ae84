// The pages of a cache for Python, and the keys and values of one layer in them, to which calls attend
// and append.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "../dispatch/page_table.hpp"
#include "page_rows.hpp"

namespace regard {

// An array of a layer: its type, and its shape in a page, (kv_heads, page_rows, items) or, for scales
// of rows, (kv_heads, page_rows).
struct LayerArray {
  py::dtype dtype;
  std::vector<py::ssize_t> shape;
  std::int64_t offset;  // in the page, in bytes

  py::array in(const Block& block, std::int64_t stride) const;
};

using KeyMeans = py::array_t<float, py::array::c_style>;  // (kv_heads, head_dim)

// The arrays of a layer (keys, values, and the scales of both), and its scales of heads that never
// change, if it has any.
struct LayerForm {
  std::vector<LayerArray> arrays;
  std::vector<py::array_t<float>> scales;
  std::optional<KeyMeans> key_means;  // subtracted from keys before they are stored
  // If values are the first columns of the keys, they have no arrays, and this is the number of items
  // in a row of values; otherwise 0. The second is the number in a row of their scales, 0 if these have
  // no columns.
  std::int64_t value_items = 0;
  std::int64_t value_scale_items = 0;
};

// The pages of a cache.
struct CachePages {
  std::unique_ptr<PageTable> table;
  std::shared_ptr<const std::vector<LayerForm>> layers;
};

// The keys and values of a layer of a cache, or of another engine.
class LayerPages {
 public:
  LayerPages(std::shared_ptr<CachePages> cache, std::int64_t layer);
  // Pages of another engine, which have these arrays, and the table and the lengths of its texts.
  LayerPages(py::handle key, py::handle value, py::handle key_scales, py::handle value_scales,
             const py::array_t<std::int32_t>& table, const py::array_t<std::int64_t>& lengths, bool are_e5m2);

  bool is_foreign() const { return !cache_; }
  State state() const;
  std::shared_ptr<const PageRows> rows() const;  // valid until the pages move
  std::size_t pool() const;
  // The window of the cache; the rows of a page for other engines.
  const PoolLayout& layout() const { return *layout_; }
  std::int64_t layer() const { return layer_; }
  PageTable& table() const { return *cache_->table; }

  // Whether values are the first columns of the keys.
  bool are_values_in_keys() const {
    return cache_ && (*cache_->layers)[static_cast<std::size_t>(layer_)].value_items > 0;
  }

  // What was subtracted from keys, or null.
  const KeyMeans* key_means() const {
    if (!cache_) return nullptr;
    const LayerForm& form = (*cache_->layers)[static_cast<std::size_t>(layer_)];
    return form.key_means ? &*form.key_means : nullptr;
  }

  // Of the pages in a block.
  std::shared_ptr<const PageRows> rows_in(const Block& block) const;

 private:
  std::shared_ptr<CachePages> cache_;
  std::int64_t layer_ = 0;
  const PoolLayout* layout_;
  std::shared_ptr<const PoolLayout> foreign_layout_;
  State foreign_state_;
  mutable std::mutex lock_;  // of the next two
  mutable std::shared_ptr<const PageRows> rows_;
  mutable Block block_;
};

}  // namespace regard
