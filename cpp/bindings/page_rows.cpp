#include "page_rows.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "../dispatch/compute.hpp"
#include "arguments.hpp"
#include "gil.hpp"
#include "threading.hpp"

namespace regard {
namespace {

bool is_empty(const ArrayView& view) {
  return std::find(view.shape.begin(), view.shape.end(), 0) != view.shape.end();
}

// A view of an array that belongs to a cache.
ArrayView taken_view(const char* name, py::handle object, Accepts accepts) {
  ArrayView view;
  if (!take_view(view, name, object, accepts))
    throw py::type_error(std::string(name) + " cannot be read as it is, got " + describe(object));
  return view;
}

bool has_columns_side_by_side(const ArrayView& view) {
  return view.stride(1) == 1 || view.size(1) <= 1 || is_empty(view);
}

// The last axis of scales is the rows; the last axis of group scales is a scale and a minimum.
ArrayView scales_view(const char* name, py::handle object, const ArrayView& rows) {
  const ArrayView view = taken_view(name, object, Accepts::storage);
  const bool are_of_groups = view.element == Element::float16 && rows.element == Element::float8;
  if (view.element != Element::float32 && !are_of_groups)
    throw py::type_error(std::string(name) + " must be an array of float32, got " + describe(object));
  Shape wanted(rows.shape.begin(), rows.shape.end() - 1);
  if (are_of_groups) wanted.push_back(2 * (2 * rows.size(1) / kGroupOfFourBits));
  if (view.shape != wanted)
    throw py::value_error(std::string(name) + " must have shape " + to_text(wanted) + ", got " +
                          to_text(view.shape));
  return view;
}

bool is_narrow(Element element) {
  return element == Element::float16 || element == Element::bfloat16 || element == Element::float32;
}

bool converts(Element from, Element to) { return from == to || (is_narrow(from) && is_narrow(to)); }

RowArray row_array(const ArrayView& view, int inner) {
  const std::size_t first = view.shape.size() - static_cast<std::size_t>(inner);
  return {view.data, view.element,
          view.shape.size() > static_cast<std::size_t>(inner) ? view.strides[0] : 0,
          view.strides[first], view.strides[first + 1]};
}

// Returns whether a finite number became infinite. Scales have no columns.
bool store_array(StoreProblem problem, const ArrayView& from, const ArrayView& to, bool has_columns) {
  problem.columns = has_columns ? to.size(1) : 1;
  problem.from = row_array(from, has_columns ? 3 : 2);
  problem.to = row_array(to, has_columns ? 3 : 2);
  const int threads = thread_count_of(py::none());
  const double elements = static_cast<double>(problem.entries * problem.heads * problem.most_rows) *
                          static_cast<double>(problem.columns);
  bool overflows = false;
  run_work(elements, [&](const StopSignal&) { overflows = store_rows(problem, threads); });
  return overflows;
}

}  // namespace

PageRows::PageRows(py::handle key_object, py::handle value_object, py::handle key_scales_object,
                   py::handle value_scales_object, bool are_upright, bool are_e5m2)
    : key(taken_view("key", key_object, Accepts::cache)),
      value(taken_view("value", value_object, Accepts::cache)),
      are_keys_upright(are_upright) {
  for (const ArrayView* view : {&key, &value}) {
    if (view->axes() != 4)
      throw py::value_error(std::string(view->name) + " must have 4 dimensions, got shape " +
                            to_text(view->shape));
    if (!has_columns_side_by_side(*view))
      throw py::value_error(std::string(view->name) + " must be contiguous along its last axis");
  }
  if (!std::equal(key.shape.begin(), key.shape.begin() + 3, value.shape.begin()))
    throw py::value_error("key and value must share all but their last axis (shapes " +
                          to_text(key.shape) + " and " + to_text(value.shape) + ")");
  if (page_rows() < 1) throw py::value_error("pages must have at least one row, got shape " + to_text(key.shape));
  if (key.element != value.element && (is_quantized(key.element) || is_quantized(value.element)))
    throw py::type_error("key and value must have the same type");
  if (are_e5m2) key.element = value.element = Element::float8_e5m2;
  if (!is_quantized(key.element)) return;
  key_scales = scales_view("key_scales", key_scales_object, key);
  value_scales = scales_view("value_scales", value_scales_object, value);
}

bool PageRows::takes(const ArrayView& given, const ArrayView& own, std::int64_t entries, bool is_packed) const {
  const bool has_columns = own.axes() == 4;
  const int axes = has_columns ? 3 : 2;  // of one entry
  if (given.axes() != axes && (is_packed || given.axes() != axes + 1)) return false;
  if (!is_packed && (given.axes() == axes ? entries != 1 : given.shape[0] != entries)) return false;
  if (has_columns && (given.size(1) != own.size(1) || !has_columns_side_by_side(given))) return false;
  const std::size_t heads = is_packed ? 1 : given.shape.size() - static_cast<std::size_t>(axes);
  return given.shape[heads] == own.shape[1] && converts(given.element, own.element);
}

bool PageRows::store(const PageTable::Place& place, const Counts& counts, const std::int64_t* packed,
                     const std::array<ArrayView, 4>& given) const {
  const PoolEntries& entries = place.state.pools[static_cast<std::size_t>(place.pool)];
  StoreProblem problem{};
  problem.entries = static_cast<std::int64_t>(counts.size());
  problem.heads = key.shape[1];
  problem.starts = place.starts.data();
  problem.counts = counts.data();
  problem.packed = packed;
  problem.pages = entries.pages->data();
  problem.pages_stride = entries.columns;
  problem.page_rows = page_rows();
  problem.most_rows = *std::max_element(counts.begin(), counts.end());
  bool overflows = false;
  const ArrayView* const own[] = {&key, &value, &key_scales, &value_scales};
  for (std::size_t part = 0; part < given.size(); ++part) {
    if (!given[part].array) continue;
    ArrayView rows = given[part];
    if (packed) {  // as (kv_heads, tokens, dim)
      std::swap(rows.shape[0], rows.shape[1]);
      std::swap(rows.strides[0], rows.strides[1]);
    }
    overflows |= store_array(problem, rows, *own[part], own[part]->axes() == 4);
  }
  return !overflows;
}

}  // namespace regard
