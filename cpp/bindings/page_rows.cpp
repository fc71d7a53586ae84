#include "page_rows.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../dispatch/compute.hpp"
#include "arguments.hpp"
#include "gil.hpp"
#include "starts.hpp"
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

// One number for each batch entry, from an int or an array of int64.
class EntryCounts {
 public:
  EntryCounts(const char* name, py::handle object, std::int64_t entries) {
    if (PyLong_CheckExact(object.ptr())) {
      numbers_.assign(static_cast<std::size_t>(entries), integer_of(name, object));
      return;
    }
    const py::array_t<std::int64_t> array = py::cast<py::array_t<std::int64_t>>(object);
    if (array.ndim() != 1 || array.shape(0) != entries)
      throw py::value_error(std::string(name) + " must have one number for each of the " +
                            std::to_string(entries) + " batch entries");
    const auto view = array.unchecked<1>();
    for (py::ssize_t entry = 0; entry < entries; ++entry) numbers_.push_back(view(entry));
  }

  const std::int64_t* data() const { return numbers_.data(); }
  std::int64_t operator[](std::int64_t entry) const { return numbers_[static_cast<std::size_t>(entry)]; }

 private:
  std::vector<std::int64_t> numbers_;
};

// The common part of the problems of all arrays that are stored in one call.
StoreProblem store_problem(const PageRows& rows, const PageTable& table, const EntryCounts& starts,
                           const EntryCounts& counts) {
  StoreProblem problem{};
  problem.entries = table.entries;
  problem.heads = rows.key.shape[1];
  problem.starts = starts.data();
  problem.counts = counts.data();
  problem.pages = table.data;
  problem.pages_stride = table.stride;
  problem.page_rows = rows.page_rows();
  for (std::int64_t entry = 0; entry < table.entries; ++entry) {
    const std::int64_t start = starts[entry], count = counts[entry];
    problem.most_rows = std::max(problem.most_rows, count);
    if (count <= 0) continue;
    const std::int64_t first = start / problem.page_rows, last = (start + count - 1) / problem.page_rows;
    if (start < 0 || last >= table.columns)
      throw py::value_error("pages must have a column for every new row");
    for (std::int64_t column = first; column <= last; ++column) {
      const std::int32_t page = table.data[entry * table.stride + column];
      if (page < 0 || page >= rows.pages())
        throw py::value_error("pages must be from 0 to " + std::to_string(rows.pages() - 1) + ", got " +
                              std::to_string(page));
    }
  }
  return problem;
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

// (batch, heads, new, dim), or without the first axis if the batch is 1.
bool fits(const ArrayView& given, const ArrayView& rows, std::int64_t entries) {
  return (given.axes() == 4 ? given.shape[0] == entries : given.axes() == 3 && entries == 1) &&
         given.size(3) == rows.shape[1] && given.size(1) == rows.size(1) &&
         has_columns_side_by_side(given);
}

// (tokens, heads, dim).
bool fits_packed(const ArrayView& given, const ArrayView& rows) {
  return given.axes() == 3 && given.size(2) == rows.shape[1] && given.size(1) == rows.size(1) &&
         has_columns_side_by_side(given);
}

}  // namespace

PageTable::PageTable(py::handle object) {
  if (!py::isinstance<py::array>(object)) throw py::type_error("pages must be an array of int32");
  array = py::reinterpret_borrow<py::array>(object);
  if (array.dtype().kind() != 'i' || array.itemsize() != 4 || array.ndim() != 2)
    throw py::type_error("pages must be an array of int32 with 2 axes");
  entries = array.shape(0);
  columns = array.shape(1);
  if (array.strides(1) != 4 && columns > 1 && entries > 0)
    throw py::value_error("pages must be contiguous along its last axis");
  stride = array.strides(0) / 4;
  data = static_cast<const std::int32_t*>(array.data());
}

PageRows::PageRows(py::handle key_object, py::handle value_object, py::handle key_scales_object,
                   py::handle value_scales_object, bool are_upright)
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
  if (!is_quantized(key.element)) return;
  key_scales = scales_view("key_scales", key_scales_object, key);
  value_scales = scales_view("value_scales", value_scales_object, value);
}

std::int64_t PageRows::store_plain(py::handle pages, py::handle starts, std::int64_t most,
                                   py::handle new_key, py::handle new_value) const {
  ArrayView keys, values;
  if (!take_view(keys, "key", new_key, Accepts::storage) ||
      !take_view(values, "value", new_value, Accepts::storage))
    return -1;
  const PageTable table(pages);
  if (!fits(keys, key, table.entries) || !fits(values, value, table.entries)) return -1;
  const std::int64_t count = keys.size(2);
  if (values.size(2) != count || count > most || !converts(keys.element, key.element) ||
      !converts(values.element, value.element))
    return -1;
  const EntryCounts where("starts", starts, table.entries);
  const EntryCounts counts("counts", py::int_(count), table.entries);
  const StoreProblem problem = store_problem(*this, table, where, counts);
  const bool overflows = store_array(problem, keys, key, true) | store_array(problem, values, value, true);
  return overflows ? -1 : count;
}

py::object PageRows::store_packed(py::handle pages, py::handle starts, std::int64_t most, py::handle new_key,
                                  py::handle new_value, py::handle token_starts) const {
  ArrayView keys, values;
  if (!take_view(keys, "key", new_key, Accepts::storage) ||
      !take_view(values, "value", new_value, Accepts::storage))
    return py::none();
  const PageTable table(pages);
  if (!fits_packed(keys, key) || !fits_packed(values, value) || keys.size(3) != values.size(3) ||
      !converts(keys.element, key.element) || !converts(values.element, value.element))
    return py::none();
  const Starts packed = starts_of("starts", token_starts);
  if (static_cast<std::int64_t>(packed.size()) != table.entries + 1 || packed.back() != keys.size(3) ||
      longest(packed) > most)
    return py::none();
  py::array_t<std::int64_t> counts(table.entries);
  std::int64_t* const numbers = counts.mutable_data();
  for (std::size_t entry = 0; entry + 1 < packed.size(); ++entry) numbers[entry] = packed[entry + 1] - packed[entry];
  const EntryCounts where("starts", starts, table.entries), each("counts", counts, table.entries);
  StoreProblem problem = store_problem(*this, table, where, each);
  problem.packed = packed.data();
  // As (kv_heads, tokens, dim).
  for (ArrayView* view : {&keys, &values}) {
    std::swap(view->shape[0], view->shape[1]);
    std::swap(view->strides[0], view->strides[1]);
  }
  if (store_array(problem, keys, key, true) | store_array(problem, values, value, true)) return py::none();
  const bool are_alike = std::adjacent_find(numbers, numbers + table.entries, std::not_equal_to<>()) ==
                         numbers + table.entries;
  return are_alike ? py::object(py::int_(numbers[0])) : counts;
}

bool PageRows::store(py::handle pages, py::handle starts, py::handle counts, bool is_packed, py::handle new_key,
                     py::handle new_value, py::handle new_key_scales, py::handle new_value_scales) const {
  const PageTable table(pages);
  const EntryCounts where("starts", starts, table.entries), each("counts", counts, table.entries);
  StoreProblem problem = store_problem(*this, table, where, each);
  std::vector<std::int64_t> packed;
  std::int64_t total = 0;
  for (std::int64_t entry = 0; is_packed && entry < table.entries; ++entry) {
    packed.push_back(total);
    total += each[entry];
  }
  if (is_packed) problem.packed = packed.data();
  const std::int64_t outer = is_packed ? 1 : table.entries, inner = is_packed ? total : problem.most_rows;
  bool overflows = false;
  const auto put = [&](const ArrayView& from, const ArrayView& to, bool has_columns) {
    const std::size_t wanted = has_columns ? 4 : 3;
    if (from.shape.size() != wanted || from.shape[0] != outer || from.shape[1] != to.shape[1] ||
        from.shape[2] < inner || (has_columns && from.size(1) != to.size(1)))
      throw py::value_error(std::string(to.name) + " cannot take rows of shape " + to_text(from.shape));
    if (!converts(from.element, to.element) || (has_columns && !has_columns_side_by_side(from)))
      throw py::type_error(std::string(to.name) + " cannot take such rows as they are");
    overflows |= store_array(problem, from, to, has_columns);
  };
  put(taken_view("key", new_key, Accepts::cache), key, true);
  put(taken_view("value", new_value, Accepts::cache), value, true);
  const bool have_groups = element() == Element::q4_1;
  if (have_groups || element() == Element::int8) {
    put(taken_view("key_scales", new_key_scales, Accepts::storage), key_scales, have_groups);
    put(taken_view("value_scales", new_value_scales, Accepts::storage), value_scales, have_groups);
  }
  return !overflows;
}

}  // namespace regard
