// Attention to keys and values in the pages of a cache. The caller is the cache, which knows its shapes;
// what would read beyond an array is checked all the same.
#include <algorithm>
#include <string>
#include <vector>

#include "attention_binding.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

// Sizes, and the shapes of the results. A query without batch axis has results without one.
Shape set_shapes(AttentionCall& call, const PageRows& rows, const PageTable& table, py::handle kv_len,
                 std::int64_t room) {
  const ArrayView& query = call.query;
  const py::ssize_t axes = query.axes();
  if ((axes != 4 && axes != 3) || (axes == 4 ? query.size(4) : 1) != table.entries ||
      query.size(1) != rows.key.size(1) || query.size(3) % std::max<py::ssize_t>(rows.key.size(3), 1) != 0)
    throw py::value_error("query must be (" + std::to_string(table.entries) +
                          ", heads, q_len, " + std::to_string(rows.key.size(1)) + ") with heads a multiple of " +
                          std::to_string(rows.key.size(3)) + ", got shape " + to_text(query.shape));
  AttentionProblem& problem = call.problem;
  problem.page_rows = rows.page_rows();
  problem.kv_len = whole_number_of("kv_len", kv_len);
  if (problem.kv_len < 0 || problem.kv_len > room)
    throw py::value_error("kv_len must be from 0 to " + std::to_string(room) + ", got " +
                          std::to_string(problem.kv_len));
  problem.heads = query.size(3);
  problem.kv_heads = rows.key.size(3);
  problem.q_len = query.size(2);
  problem.head_dim = query.size(1);
  problem.value_dim = rows.value.size(1);
  problem.batch = batch_of({table.entries});
  call.rows_shape = Shape(query.shape.begin(), query.shape.end() - 1);
  call.output_shape = call.weights_shape = call.rows_shape;
  call.output_shape.push_back(problem.value_dim);
  call.weights_shape.push_back(problem.kv_len);
  return {table.entries};
}

Operand page_operand(const ArrayView& view, bool has_columns) {
  Operand operand{};
  operand.data = const_cast<void*>(view.array.data());
  operand.element = view.element;
  operand.page_stride = view.strides[0];
  operand.head_stride = view.strides[1];
  operand.row_stride = view.strides[2];
  if (has_columns) operand.column_stride = view.stride(1);
  return operand;
}

// What a cache tells of its pages: (batch, columns) of them, how many each batch entry has lost between
// sink tokens and window, how many sink tokens there are, and how long the longest batch entry is.
struct CachedPages {
  py::handle table;
  py::handle evicted;
  py::handle sink_tokens;
  py::handle kv_len;
};

std::int64_t of_entry(const Operand& operand, std::int64_t entry) {
  return static_cast<const std::int64_t*>(operand.data)[entry * operand.batch_strides[0]];
}

// A call with everything checked and set but the results.
struct CachedCall : AttentionCall {
  CachedCall(py::handle query, const PageRows& page_rows, const CachedPages& pages, py::handle mask,
             const AttentionOptions& options)
      : AttentionCall(query, page_rows.key.array, page_rows.value.array, Accepts::cache),
        rows(page_rows),
        table(pages.table) {
    problem.sink_tokens = whole_number_of("sink_tokens", pages.sink_tokens);
    set_evicted(pages.evicted);
    const std::int64_t most_evicted = *std::max_element(evicted_.begin(), evicted_.end());
    const Shape batch = set_shapes(*this, rows, table, pages.kv_len,
                                   (table.columns + most_evicted) * rows.page_rows());
    set_options(problem, options, batch, "batch axes", memory);
    set_mask(mask);
  }

  // Locates what the cache holds, in place of what the dense call would make of these arrays.
  void set_rows() {
    problem.key = page_operand(rows.key, true);
    problem.value = page_operand(rows.value, true);
    if (rows.is_int8()) {
      problem.key_scales = page_operand(rows.key_scales, false);
      problem.value_scales = page_operand(rows.value_scales, false);
    }
    problem.pages.data = const_cast<std::int32_t*>(table.data);
    problem.pages.element = Element::int32;
    problem.pages.batch_strides[0] = table.stride;
    for (std::int64_t entry = 0; entry < table.entries; ++entry) check_entry(entry);
  }

  const PageRows& rows;
  PageTable table;

 private:
  // An int, or an array of int64 with one for each batch entry.
  void set_evicted(py::handle evicted) {
    if (PyLong_CheckExact(evicted.ptr())) {
      evicted_.push_back(whole_number_of("evicted_pages", evicted));
      if (evicted_[0] == 0) return;
    } else {
      const auto array = py::cast<py::array_t<std::int64_t>>(evicted);
      if (array.ndim() != 1 || array.shape(0) != table.entries)
        throw py::value_error("evicted_pages must be one for each batch entry");
      const auto view = array.unchecked<1>();
      for (py::ssize_t entry = 0; entry < table.entries; ++entry) evicted_.push_back(view(entry));
      problem.evicted_pages.batch_strides[0] = 1;
    }
    problem.evicted_pages.data = evicted_.data();
    problem.evicted_pages.element = Element::int64;
  }

  // The pages that an entry's queries see are there: in the table, and in the pool.
  void check_entry(std::int64_t entry) const {
    std::int64_t keys = problem.kv_len;
    if (problem.key_lengths.data) keys = std::min(keys, of_entry(problem.key_lengths, entry));
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

  void check_sees_none_evicted(std::int64_t entry, std::int64_t keys, std::int64_t evicted) const {
    const std::int64_t page_rows = problem.page_rows;
    const std::int64_t first = (problem.sink_tokens + page_rows - 1) / page_rows * page_rows;
    const std::int64_t kept = first + evicted * page_rows;
    const std::int64_t offset = of_entry(problem.query_offset, entry);
    const std::int64_t last_query = offset + problem.q_len - 1;
    // Positions and windows are far from the ends of 64 bits here, but for what a caller asked for.
    std::int64_t lowest = 0, highest = keys - 1;
    if (problem.window_left != kUnbounded && __builtin_sub_overflow(offset, problem.window_left, &lowest))
      lowest = INT64_MIN;
    std::int64_t reach = highest;
    if (problem.window_right != kUnbounded &&
        !__builtin_add_overflow(last_query, problem.window_right, &reach))
      highest = std::min(highest, reach);
    if (problem.q_len == 0 || lowest >= kept || highest < first) return;
    throw py::value_error("query at position " + std::to_string(offset) + " of batch entry " +
                          std::to_string(entry) + " would see positions from " +
                          std::to_string(std::max<std::int64_t>(lowest, 0)) + " on, and those from " +
                          std::to_string(first) + " to " + std::to_string(kept - 1) +
                          " are evicted: attend to them before later tokens are appended");
  }

  std::vector<std::int64_t> evicted_;
};

}  // namespace

py::object attention_cached(py::handle query, const PageRows& rows, py::handle pages,
                            py::handle evicted_pages, py::handle sink_tokens, py::handle kv_len,
                            py::handle mask, py::handle is_causal, py::handle query_offset,
                            py::handle window, py::handle key_lengths, py::handle scale,
                            py::handle softcap, py::handle alibi_slopes, py::handle sinks,
                            py::handle return_weights, py::handle return_lse, py::handle out,
                            py::handle threads) {
  const int thread_count = thread_count_of(threads);
  const bool wants_weights = flag_of("return_weights", return_weights);
  const bool wants_lse = flag_of("return_lse", return_lse);
  CachedCall call(query, rows, {pages, evicted_pages, sink_tokens, kv_len}, mask,
                  {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
                   py::none()});
  call.set_results(out, wants_weights, wants_lse);
  call.set_rows();
  return call.run(thread_count);
}

py::dict attention_cached_plan(py::handle query, const PageRows& rows, py::handle pages,
                               py::handle evicted_pages, py::handle sink_tokens, py::handle kv_len,
                               py::handle mask, py::handle is_causal, py::handle query_offset,
                               py::handle window, py::handle key_lengths, py::handle scale,
                               py::handle softcap, py::handle alibi_slopes, py::handle sinks,
                               py::handle threads) {
  const int thread_count = thread_count_of(threads);
  CachedCall call(query, rows, {pages, evicted_pages, sink_tokens, kv_len}, mask,
                  {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
                   py::none()});
  call.set_inputs();
  call.set_rows();
  return call.plan(thread_count);
}

}  // namespace regard
