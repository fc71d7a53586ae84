#include "layer_pages.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "../platform/page_memory.hpp"
#include "arguments.hpp"
#include "bindings.hpp"
#include "starts.hpp"

namespace regard {
namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line, to which arrays are aligned

py::array_t<std::int64_t> array_of(const Counts& counts) {
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(counts.size()), counts.data());
}

Counts counts_of(const py::array_t<std::int64_t>& array) {
  const auto view = array.unchecked<1>();
  Counts counts;
  for (py::ssize_t entry = 0; entry < view.size(); ++entry) counts.push_back(view(entry));
  return counts;
}

void set_entries(CacheState& state,
                 const py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>& table,
                 Counts evicted) {
  PoolEntries& entries = state.pools.emplace_back();
  entries.pages = std::make_shared<PageNumbers>(table.data(), table.data() + table.size());
  entries.columns = table.shape(1);
  entries.evicted = std::move(evicted);
}

py::array_t<std::int32_t> table_of(const CacheState& state, std::size_t pool) {
  const PoolEntries& entries = state.pools[pool];
  return py::array_t<std::int32_t>(
      {static_cast<py::ssize_t>(state.entries()), static_cast<py::ssize_t>(entries.columns)},
      entries.pages->data());
}

// `layers` are tuples (pool, [(dtype, shape)], (key_scales, value_scales) or None, key_means or None, None
// or, for values in keys, (items of a row of values, items of a row of their scales)); `pools` are tuples
// (page_rows, keep_last or -1, keep_first, number of pages that are allocated at once).
std::shared_ptr<CachePages> new_pages(std::size_t batch, const py::list& pools, const py::list& layers,
                                      std::int64_t capacity, std::int64_t most_bytes) {
  std::vector<PoolLayout> layouts;
  Counts space;
  for (const py::handle pool : pools) {
    const auto [page_rows, keep_last, keep_first, at_once] =
        pool.cast<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>>();
    layouts.push_back({page_rows, keep_last, keep_first});
    space.push_back(at_once);
  }
  auto all = std::make_shared<PagePools>();
  auto forms = std::make_shared<std::vector<LayerForm>>();
  for (const py::handle layer : layers) {
    const auto [pool, arrays, scales, means, in_keys] =
        layer.cast<std::tuple<std::size_t, py::list, py::object, py::object, py::object>>();
    PoolLayout& layout = layouts.at(pool);
    LayerForm& form = forms->emplace_back();
    for (const py::handle array : arrays) {
      auto [dtype, shape] = array.cast<std::pair<py::dtype, std::vector<py::ssize_t>>>();
      const std::int64_t row_bytes = dtype.itemsize() * (shape.size() > 2 ? shape[2] : 1);
      layout.regions.push_back({layout.stride, shape[0], row_bytes});
      form.arrays.push_back({dtype, shape, layout.stride});
      layout.stride += (shape[0] * shape[1] * row_bytes + kLine - 1) / kLine * kLine;
    }
    if (!in_keys.is_none())
      std::tie(form.value_items, form.value_scale_items) = in_keys.cast<std::pair<std::int64_t, std::int64_t>>();
    if (!scales.is_none()) form.scales = scales.cast<std::vector<py::array_t<float>>>();
    if (!means.is_none()) form.key_means = means.cast<KeyMeans>();
    all->pool_of_layer.push_back(static_cast<std::int64_t>(pool));
  }
  for (const PoolLayout& layout : layouts) all->pools.emplace_back(layout);
  all->capacity = capacity;
  all->most_bytes = most_bytes;
  std::int64_t bytes = 0, of_pool = 0;
  for (std::size_t pool = 0; pool < layouts.size(); ++pool)
    if (__builtin_mul_overflow(space[pool], layouts[pool].stride, &of_pool) ||
        __builtin_add_overflow(bytes, of_pool, &bytes))
      throw OutOfPages("no memory for %lld pages of %lld bytes", space[pool], layouts[pool].stride);
  all->check_budget(bytes);
  for (std::size_t pool = 0; pool < layouts.size(); ++pool) all->pools[pool].reserve(space[pool]);
  return std::make_shared<CachePages>(CachePages{std::make_unique<PageTable>(all, batch), forms});
}

// `pools` are tuples (table, evicted, offset, count) of pages in an open file, which is mapped or read.
void restore(CachePages& pages, const py::array_t<std::int64_t>& lengths, const py::list& pools,
             int descriptor, bool is_mapped) {
  CacheState state;
  state.lengths = counts_of(lengths);
  state.longest = longest_of(state.lengths);
  std::vector<Block> blocks;
  Counts used;
  for (std::size_t number = 0; number < pools.size(); ++number) {
    const auto [table, evicted, offset, count] =
        pools[number]
            .cast<std::tuple<py::array_t<std::int32_t>, py::array_t<std::int64_t>, std::int64_t,
                             std::int64_t>>();
    set_entries(state, table, counts_of(evicted));
    used.push_back(count);
    PagePool& pool = pages.table->pools()->pools[number];
    const std::int64_t stride = pool.layout.stride;
    const auto mapped = [&, from = offset, in_file = count](std::int64_t space) {
      return std::make_shared<PageBlock>(stride, in_file + space, descriptor, from, in_file);
    };
    if (is_mapped) {
      const std::int64_t space =
          std::min(static_cast<std::int64_t>(free_address_space()) / stride, kMostPages - count);
      try {
        blocks.push_back(mapped(space));
      } catch (const OutOfPages&) {  // other mappings use the address space
        blocks.push_back(mapped(0));
      }
    } else {
      pool.reserve(count);
      blocks.push_back(pool.block);
      if (count > 0)
        std::memcpy(pool.block->page(0), mapped(0)->page(0), static_cast<std::size_t>(count * stride));
    }
  }
  pages.table->restore(state, blocks, used);
}

// An integer for all entries, of which shorter ones do not change, or the length of each entry.
Counts shorter(const PageTable& table, py::handle length) {
  if (!PyLong_CheckExact(length.ptr())) return counts_of(py::cast<py::array_t<std::int64_t>>(length));
  const State state = table.state();
  const std::int64_t most = integer_of("length", length);
  if (most < 0 || most > state->longest)
    throw py::value_error("length must be from 0 to " + std::to_string(state->longest) +
                          ", the cache's length, got " + std::to_string(most));
  Counts lengths = state->lengths;
  for (std::int64_t& own : lengths) own = std::min(own, most);
  return lengths;
}

// The used pages of a pool as bytes, (pages, bytes of a page).
py::array_t<std::uint8_t> memory_of(const CachePages& pages, std::size_t number) {
  PagePools& pools = *pages.table->pools();
  const PagePool& pool = pools.pools[number];
  Block block;
  std::int64_t used = 0;
  {
    const std::lock_guard guard(pools.lock);
    block = pool.block;
    used = pool.used();
  }
  const LayerArray bytes{py::dtype::of<std::uint8_t>(), {pool.layout.stride, 1, 1}, 0};
  const py::array all = bytes.in(block, pool.layout.stride);
  return all[py::make_tuple(py::slice(0, used, 1), py::ellipsis(), 0, 0)]
      .cast<py::array_t<std::uint8_t>>();
}

}  // namespace

py::array LayerArray::in(const Block& block, std::int64_t stride) const {
  std::vector<py::ssize_t> sizes{block ? block->pages() : 0}, strides{stride};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  if (!block) return py::array(dtype, sizes);
  py::ssize_t step = dtype.itemsize();
  for (std::size_t axis = shape.size(); axis-- > 0; step *= shape[axis])
    strides.insert(strides.begin() + 1, step);
  const py::capsule owner(new Block(block), [](void* object) { delete static_cast<Block*>(object); });
  return py::array(dtype, sizes, strides, block->page(0) + offset, owner);
}

LayerPages::LayerPages(std::shared_ptr<CachePages> cache, std::int64_t layer)
    : cache_(std::move(cache)), layer_(layer), layout_(&table().pools()->pools[pool()].layout) {}

LayerPages::LayerPages(py::handle key, py::handle value, py::handle key_scales, py::handle value_scales,
                       const py::array_t<std::int32_t>& table, const py::array_t<std::int64_t>& lengths,
                       bool are_e5m2) {
  rows_ = std::make_shared<PageRows>(key, value, key_scales, value_scales, true, are_e5m2);
  foreign_layout_ = std::make_shared<PoolLayout>(PoolLayout{rows_->page_rows(), kKeepAll, 0});
  layout_ = foreign_layout_.get();
  CacheState state;
  state.lengths = counts_of(lengths);
  state.longest = longest_of(state.lengths);
  set_entries(state, table, Counts(state.entries(), 0));
  foreign_state_ = std::make_shared<CacheState>(std::move(state));
}

std::size_t LayerPages::pool() const {
  return cache_ ? static_cast<std::size_t>(table().pools()->pool_of_layer[static_cast<std::size_t>(layer_)])
                : 0;
}

State LayerPages::state() const { return cache_ ? table().state_of(layer_) : foreign_state_; }

std::shared_ptr<const PageRows> LayerPages::rows() const {
  if (!cache_) return rows_;
  PagePools& pools = *table().pools();
  Block block;
  {
    const std::lock_guard guard(pools.lock);
    block = pools.pools[pool()].block;
  }
  return rows_in(block);
}

std::shared_ptr<const PageRows> LayerPages::rows_in(const Block& block) const {
  {
    const std::lock_guard guard(lock_);
    if (rows_ && block_ == block) return rows_;
  }
  const LayerForm& form = (*cache_->layers)[static_cast<std::size_t>(layer_)];
  std::array<py::object, 4> arrays{py::none(), py::none(), py::none(), py::none()};
  const bool are_in_keys = form.value_items > 0;
  for (std::size_t part = 0; part < form.arrays.size(); ++part)
    arrays[are_in_keys ? 2 * part : part] = form.arrays[part].in(block, layout_->stride);
  const auto first = [](const py::object& array, std::int64_t items) {
    return py::object(array[py::make_tuple(py::ellipsis(), py::slice(0, items, 1))]);
  };
  if (are_in_keys) {
    arrays[1] = first(arrays[0], form.value_items);
    arrays[3] = form.value_scale_items > 0 ? first(arrays[2], form.value_scale_items) : arrays[2];
  }
  for (std::size_t part = 0; part < form.scales.size(); ++part) {  // rows share the number of their head
    const py::array_t<float>& scales = form.scales[part];
    const std::vector<py::ssize_t> sizes{block ? block->pages() : 0, scales.shape(0), layout_->page_rows};
    arrays[2 + part] = py::array(scales.dtype(), sizes, std::vector<py::ssize_t>{0, scales.strides(0), 0},
                                 scales.data(), scales);
  }
  std::shared_ptr<const PageRows> made = std::make_shared<PageRows>(arrays[0], arrays[1], arrays[2],
                                                                    arrays[3], are_in_keys),
                                  old = made;
  const std::lock_guard guard(lock_);  // not while Python objects are created or destroyed
  rows_.swap(old);
  block_ = block;
  return made;
}

py::object append_rows(py::handle pages_object, py::handle key, py::handle value, py::handle key_scales,
                       py::handle value_scales, py::handle counts_object, py::handle is_packed_object) {
  const LayerPages& pages = py::cast<const LayerPages&>(pages_object);
  const bool is_packed = is_packed_object.ptr() == Py_True;
  const State state = pages.state();
  const auto entries = static_cast<std::int64_t>(state->entries());
  const std::shared_ptr<const PageRows> rows = pages.rows();
  const ArrayView* const own[] = {&rows->key, &rows->value, &rows->key_scales, &rows->value_scales};
  const py::handle objects[] = {key, value, key_scales, value_scales};
  std::array<ArrayView, 4> given;
  for (std::size_t part = 0; part < given.size(); ++part) {
    if (objects[part].is_none() && (part >= 2 || (part == 1 && pages.are_values_in_keys()))) continue;
    if (part % 2 == 1 && pages.are_values_in_keys()) return py::bool_(false);
    if (!take_view(given[part], own[part]->name, objects[part], Accepts::cache) ||
        !rows->takes(given[part], *own[part], entries, is_packed))
      return py::bool_(false);
  }
  const auto tokens_of = [&](const ArrayView& view) { return is_packed ? view.shape[0] : view.size(2); };
  const std::int64_t tokens = tokens_of(given[0]);
  if (given[1].array && tokens_of(given[1]) != tokens) return py::bool_(false);
  Counts counts;
  Starts starts;
  if (is_packed) {
    starts = starts_of("starts", counts_object);
    if (static_cast<std::int64_t>(starts.size()) != entries + 1 || starts.back() != tokens)
      return py::bool_(false);
    for (std::size_t entry = 0; entry + 1 < starts.size(); ++entry)
      counts.push_back(starts[entry + 1] - starts[entry]);
  } else if (counts_object.is_none()) {
    counts.assign(state->entries(), tokens);
  } else {
    counts = counts_of(counts_object.cast<py::array_t<std::int64_t>>());
    if (static_cast<std::int64_t>(counts.size()) != entries)
      throw py::value_error("counts must have one number for each batch entry");
    for (const std::int64_t count : counts)
      if (count < 0 || count > tokens)
        throw py::value_error("counts must be from 0 to " + std::to_string(tokens));
  }
  return py::bool_(pages.table().append(pages.layer(), counts, [&](const PageTable::Place& place) {
    return pages.rows_in(place.block)->store(place, counts, is_packed ? starts.data() : nullptr, given);
  }));
}

void add_page_tables(py::module_& module) {
  py::class_<CachePages, std::shared_ptr<CachePages>>(module, "PageTable")
      .def(py::init(&new_pages))
      .def("restore", &restore)
      .def("layer", [](const std::shared_ptr<CachePages>& pages,
                       std::int64_t layer) { return std::make_unique<LayerPages>(pages, layer); })
      .def("rollback", [](const CachePages& pages) { pages.table->rollback(); })
      .def("truncate", [](const CachePages& pages,
                          const py::object& length) { pages.table->truncate(shorter(*pages.table, length)); })
      .def("reorder",
           [](const CachePages& pages, const py::array_t<std::int64_t>& chosen) {
             pages.table->reorder(counts_of(chosen));
           })
      .def("fork",
           [](const CachePages& pages, const py::array_t<std::int64_t>& chosen) {
             return std::make_shared<CachePages>(
                 CachePages{pages.table->fork(counts_of(chosen)), pages.layers});
           })
      .def("adopt", [](const CachePages& pages, const CachePages& other,
                       std::int64_t entry) { return pages.table->adopt(*other.table, entry); })
      .def("keep",
           [](const CachePages& pages, std::int64_t entry, const py::array_t<std::int64_t>& positions) {
             pages.table->keep(entry, counts_of(positions));
           })
      .def("exchange",
           [](const CachePages& pages, const CachePages& fork) { pages.table->exchange(*fork.table); })
      .def("length_before",
           [](const CachePages& pages, std::int64_t entry) { return pages.table->length_before(entry); })
      .def("unfinished",
           [](const CachePages& pages) -> py::object {
             const std::optional<Counts> lengths = pages.table->unfinished();
             return lengths ? py::object(array_of(*lengths)) : py::none();
           })
      .def("close", [](const CachePages& pages) { pages.table->close(); })
      .def("shares_pages",
           [](const CachePages& pages, const CachePages& other) {
             return pages.table->pools() == other.table->pools();
           })
      .def("table",
           [](const CachePages& pages, std::size_t pool) { return table_of(*pages.table->state(), pool); })
      .def("evicted", [](const CachePages& pages,
                         std::size_t pool) { return array_of(pages.table->state()->pools[pool].evicted); })
      .def("memory", &memory_of)
      .def("owners",
           [](const CachePages& pages, std::size_t number) {
             Counts owners;
             {
               const std::lock_guard guard(pages.table->pools()->lock);
               const PagePool& pool = pages.table->pools()->pools[number];
               for (std::int64_t page = 0; page < pool.used(); ++page)
                 owners.push_back(pool.owners(static_cast<std::int32_t>(page)));
             }
             return array_of(owners);
           })
      .def_property_readonly("lengths",
                             [](const CachePages& pages) { return array_of(pages.table->state()->lengths); })
      .def_property_readonly("is_closed", [](const CachePages& pages) { return pages.table->is_closed(); })
      .def_property_readonly("nbytes", [](const CachePages& pages) { return pages.table->bytes(); })
      .def_property_readonly("page_bytes", [](const CachePages& pages) {
        Counts bytes;
        for (const PagePool& pool : pages.table->pools()->pools) bytes.push_back(pool.layout.stride);
        return array_of(bytes);
      });
  py::class_<LayerPages>(module, "LayerPages")
      .def(py::init<py::handle, py::handle, py::handle, py::handle, const py::array_t<std::int32_t>&,
                    const py::array_t<std::int64_t>&, bool>())
      .def_property_readonly("lengths",
                             [](const LayerPages& pages) { return array_of(pages.state()->lengths); })
      .def_property_readonly("longest", [](const LayerPages& pages) { return pages.state()->longest; })
      .def_property_readonly("table",
                             [](const LayerPages& pages) { return table_of(*pages.state(), pages.pool()); })
      .def_property_readonly(
          "evicted",
          [](const LayerPages& pages) { return array_of(pages.state()->pools[pages.pool()].evicted); })
      .def_property_readonly("key_means",
                             [](const LayerPages& pages) -> py::object {
                               const KeyMeans* const means = pages.key_means();
                               return means ? py::object(*means) : py::none();
                             })
      .def_property_readonly("arrays", [](const LayerPages& pages) {
        const std::shared_ptr<const PageRows> rows = pages.rows();
        py::list arrays;
        for (const ArrayView* view : {&rows->key, &rows->value, &rows->key_scales, &rows->value_scales})
          if (view->array) arrays.append(view->array);
        return arrays;
      });
}

}  // namespace regard
