// Attention to keys and values in the pages of a cache. The caller is the cache, which knows its
// shapes. Accesses beyond an array are checked nevertheless.
#include <algorithm>
#include <string>

#include "arguments.hpp"
#include "attention_call.hpp"
#include "bindings.hpp"
#include "starts.hpp"

namespace regard {
namespace {

constexpr Layout kCached{3, 2, "batch axes", "(..., heads, q_len, kv_len)"};
constexpr Layout kPackedQueries{2, 3, "batch entries", "(tokens, heads, kv_len)"};

// A cache's description of its pages: a table (batch, columns), the number of pages that each batch
// entry has lost between sink tokens and window, the number of sink tokens, and the length of the
// longest batch entry.
struct CachedPages {
  py::handle table;
  py::handle evicted;
  py::handle keep_first;
  py::handle kv_len;
};

std::int64_t of_entry(const PerEntry& numbers, std::int64_t entry) {
  return numbers.data[numbers.batch_strides ? entry * numbers.batch_strides[0] : 0];
}

// A call in which everything but the results is checked and set.
class CachedCall : public AttentionCall {
 public:
  // `starts` are the starts of packed queries, or None.
  explicit CachedCall(py::handle starts) : AttentionCall(starts.is_none() ? kCached : kPackedQueries) {
    if (!starts.is_none()) starts_ = starts_of("starts", starts);
  }

  // Returns false if Python must convert an argument first.
  bool prepare(py::handle query_object, py::handle rows_object, const CachedPages& pages,
               py::handle mask_object, py::handle keywords) {
    const PageRows& rows = py::cast<const PageRows&>(rows_object);
    if (!take(query_object, rows.key.array, rows.value.array, mask_object, keywords, Accepts::cache))
      return false;
    if (options.precision == Precision::int8)
      throw py::value_error(
          "precision must be None or 'bfloat16' in a cache, got 'int8': 8-bit integers need the mean of all keys before "
          "the first one is computed");
    const PageTable table(pages.table);
    table_ = view_as("pages", table.array, Element::float32);  // of the same size
    keep_input(table_);
    if (rows.key_scales.array) keep_input(rows.key_scales);
    if (rows.value_scales.array) keep_input(rows.value_scales);
    problem.keep_first = integer_of("keep_first", pages.keep_first);
    const std::int64_t most_evicted = set_evicted(pages.evicted, table);
    set_query(set_shapes(rows, table, pages.kv_len, (table.columns + most_evicted) * rows.page_rows()));
    problem.key = page_operand(rows.key, true);
    problem.value = page_operand(rows.value, true);
    if (is_quantized(rows.element())) {
      problem.key.element = problem.value.element = rows.element();
      problem.key_scales = scale_operand(rows.key_scales);
      problem.value_scales = scale_operand(rows.value_scales);
      problem.are_keys_upright = rows.are_keys_upright;
    }
    problem.pages = table.data;
    problem.pages_stride = table.stride;
    for (std::int64_t entry = 0; entry < table.entries; ++entry) check_entry(entry, rows, table);
    return true;
  }

 private:
  // Accepts an int, or an int64 array with one number for each batch entry. Returns the largest.
  std::int64_t set_evicted(py::handle evicted, const PageTable& table) {
    const bool is_single = PyLong_CheckExact(evicted.ptr());
    std::int64_t* const stride = memory.take(1);
    *stride = is_single ? 0 : 1;
    std::int64_t most = 0;
    if (is_single) {
      most = integer_of("evicted_pages", evicted);
      if (most == 0) return 0;
      std::int64_t* const single = memory.take(1);
      *single = most;
      problem.evicted_pages = {single, stride};
      return most;
    }
    const auto array = py::cast<py::array_t<std::int64_t>>(evicted);
    if (array.ndim() != 1 || array.shape(0) != table.entries)
      throw py::value_error("evicted_pages must have one number for each batch entry");
    const auto view = array.unchecked<1>();
    std::int64_t* const numbers = memory.take(static_cast<std::size_t>(table.entries));
    for (py::ssize_t entry = 0; entry < table.entries; ++entry)
      most = std::max(most, numbers[entry] = view(entry));
    problem.evicted_pages = {numbers, stride};
    return most;
  }

  // Sets the sizes and the shapes of the results. A query without a batch axis has results without
  // a batch axis.
  Shape set_shapes(const PageRows& rows, const PageTable& table, py::handle kv_len, std::int64_t room) {
    const std::int64_t keys = integer_of("kv_len", kv_len);
    if (keys < 0 || keys > room)
      throw py::value_error("kv_len must be from 0 to " + std::to_string(room) + ", got " +
                            std::to_string(keys));
    problem.page_rows = rows.page_rows();
    if (starts_.empty())
      set_padded_shapes(rows, table, keys);
    else
      set_packed_shapes(rows, table, keys);
    return {table.entries};
  }

  void set_padded_shapes(const PageRows& rows, const PageTable& table, std::int64_t keys) {
    const py::ssize_t axes = query.axes();
    if ((axes != 4 && axes != 3) || (axes == 4 ? query.size(4) : 1) != table.entries ||
        query.size(1) != rows.head_dim() || query.size(3) % std::max<py::ssize_t>(rows.key.size(3), 1) != 0)
      throw py::value_error("query must be (" + std::to_string(table.entries) + ", heads, q_len, " +
                            std::to_string(rows.head_dim()) + ") with heads a multiple of " +
                            std::to_string(rows.key.size(3)) + ", got shape " + to_text(query.shape));
    set_sizes(query.size(3), rows.key.size(3), query.size(2), keys);
    set_batch({table.entries});
    problem.value_dim = rows.value_dim();
    set_result_shapes(Shape(query.shape.begin(), query.shape.end() - 1));
  }

  void set_packed_shapes(const PageRows& rows, const PageTable& table, std::int64_t keys) {
    if (query.axes() != 3 || query.size(1) != rows.head_dim() ||
        query.size(2) % std::max<py::ssize_t>(rows.key.size(3), 1) != 0)
      throw py::value_error("query must be (tokens, heads, " + std::to_string(rows.head_dim()) +
                            ") with heads a multiple of " + std::to_string(rows.key.size(3)) + ", got shape " +
                            to_text(query.shape));
    if (static_cast<std::int64_t>(starts_.size()) != table.entries + 1)
      throw py::value_error("starts must have shape (" + std::to_string(table.entries + 1) +
                            ",), one for each batch entry and the end, got shape (" +
                            std::to_string(starts_.size()) + ",)");
    check_starts("starts", starts_, query);
    problem.query_starts = starts_.data();
    set_sizes(query.size(2), rows.key.size(3), longest(starts_), keys);
    set_batch({table.entries});
    problem.value_dim = rows.value_dim();
    set_result_shapes({query.size(3), query.size(2)});
  }

  Operand page_operand(const ArrayView& view, bool has_columns) {
    Operand operand;
    operand.data = view.data;
    operand.element = view.element;
    operand.page_stride = view.strides[0];
    operand.head_stride = view.strides[1];
    operand.row_stride = view.strides[2];
    if (has_columns) operand.column_stride = view.stride(1);
    std::int64_t* const entry_stride = memory.take(1);
    *entry_stride = 0;
    operand.batch_strides = entry_stride;
    return operand;
  }

  // The scale and the minimum of a group are read as one 32-bit element.
  Operand scale_operand(const ArrayView& view) {
    Operand operand = page_operand(view, false);
    if (view.element != Element::float16) return operand;
    operand.element = Element::float32;
    for (std::int64_t* const stride : {&operand.page_stride, &operand.head_stride, &operand.row_stride}) *stride /= 2;
    return operand;
  }

  // Throws ValueError unless the pages that an entry's queries see are in the table and in the
  // pool.
  void check_entry(std::int64_t entry, const PageRows& rows, const PageTable& table) const {
    std::int64_t keys = problem.kv_len;
    if (problem.key_lengths.data) keys = std::min(keys, of_entry(problem.key_lengths, entry));
    if (!starts_.empty() && !problem.query_offset.data) check_are_last(entry, keys);
    const std::int64_t evicted = problem.evicted_pages.data ? of_entry(problem.evicted_pages, entry) : 0;
    if (evicted > 0) check_sees_none_evicted(entry, keys, evicted);
    const std::int64_t columns = (keys + problem.page_rows - 1) / problem.page_rows - evicted;
    if (columns > table.columns)
      throw py::value_error("pages must have " + std::to_string(columns) + " columns, got " +
                            std::to_string(table.columns));
    const std::int32_t* pages = table.data + entry * table.stride;
    for (std::int64_t column = 0; column < columns; ++column)
      if (pages[column] < 0 || pages[column] >= rows.pages())
        throw py::value_error("pages must be from 0 to " + std::to_string(rows.pages() - 1) + ", got " +
                              std::to_string(pages[column]));
  }

  std::int64_t queries_of(std::int64_t entry) const {
    const auto at = static_cast<std::size_t>(entry);
    return starts_.empty() ? problem.q_len : starts_[at + 1] - starts_[at];
  }

  // Packed queries without given positions belong to each entry's last tokens.
  void check_are_last(std::int64_t entry, std::int64_t keys) const {
    const std::int64_t queries = queries_of(entry);
    if (queries <= keys || !options.is_causal) return;
    throw py::value_error("query_offset must be given: " + std::to_string(queries) + " queries of batch entry " +
                          std::to_string(entry) + " do not belong to its last tokens, of which there are " +
                          std::to_string(keys) + "; append their keys and values before attending");
  }

  void check_sees_none_evicted(std::int64_t entry, std::int64_t keys, std::int64_t evicted) const {
    const std::int64_t page_rows = problem.page_rows;
    const std::int64_t first = (problem.keep_first + page_rows - 1) / page_rows * page_rows;
    const std::int64_t kept = first + evicted * page_rows;
    const std::int64_t queries = queries_of(entry);
    const std::int64_t offset = problem.query_offset.data ? of_entry(problem.query_offset, entry) : keys - queries;
    const std::int64_t last_query = offset + queries - 1;
    // Positions and windows are far from the limits of 64 bits here, except for numbers that the
    // caller passed.
    std::int64_t lowest = 0, highest = keys - 1;
    if (problem.window_left != kUnbounded && __builtin_sub_overflow(offset, problem.window_left, &lowest))
      lowest = INT64_MIN;
    std::int64_t reach = highest;
    if (problem.window_right != kUnbounded &&
        !__builtin_add_overflow(last_query, problem.window_right, &reach))
      highest = std::min(highest, reach);
    if (queries == 0 || lowest >= kept || highest < first) return;
    throw py::value_error("query at position " + std::to_string(offset) + " of batch entry " +
                          std::to_string(entry) + " would see positions from " +
                          std::to_string(std::max<std::int64_t>(lowest, 0)) + " on, but positions from " +
                          std::to_string(first) + " to " + std::to_string(kept - 1) +
                          " are evicted: attend to them before later tokens are appended");
  }

  Starts starts_;  // empty if queries are not packed
  ArrayView table_;
};

}  // namespace

py::object attention_cached(py::handle query, py::handle starts, py::handle rows, py::handle pages,
                            py::handle evicted_pages, py::handle keep_first, py::handle kv_len,
                            py::handle mask, py::handle keywords) {
  CachedCall call(starts);
  return call.prepare(query, rows, {pages, evicted_pages, keep_first, kv_len}, mask, keywords)
             ? call.run()
             : not_implemented();
}

py::object attention_cached_plan(py::handle query, py::handle starts, py::handle rows, py::handle pages,
                                 py::handle evicted_pages, py::handle keep_first, py::handle kv_len,
                                 py::handle mask, py::handle keywords) {
  CachedCall call(starts);
  return call.prepare(query, rows, {pages, evicted_pages, keep_first, kv_len}, mask, keywords)
             ? call.explain()
             : not_implemented();
}

}  // namespace regard
