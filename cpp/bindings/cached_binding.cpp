// Attention to keys and values in the pages of a cache. The caller is the cache, which knows its shapes;
// what would read beyond an array is checked all the same.
#include <algorithm>
#include <string>

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

// A call with everything checked and set but the results.
struct CachedCall : AttentionCall {
  CachedCall(py::handle query, const PageRows& page_rows, py::handle pages, py::handle kv_len,
             py::handle mask, const AttentionOptions& options)
      : AttentionCall(query, page_rows.key.array, page_rows.value.array, Accepts::cache),
        rows(page_rows),
        table(pages) {
    const Shape batch = set_shapes(*this, rows, table, kv_len, table.columns * rows.page_rows());
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
    check_pages();
  }

  // The pages of an entry's keys are there.
  void check_pages() const {
    for (std::int64_t entry = 0; entry < table.entries; ++entry) {
      std::int64_t keys = problem.kv_len;
      if (problem.key_lengths.data)
        keys = std::min(keys, static_cast<const std::int64_t*>(
                                  problem.key_lengths.data)[entry * problem.key_lengths.batch_strides[0]]);
      const std::int32_t* pages = table.data + entry * table.stride;
      for (std::int64_t column = 0; column * problem.page_rows < keys; ++column)
        if (pages[column] < 0 || pages[column] >= rows.pages())
          throw py::value_error("pages must be from 0 to " + std::to_string(rows.pages() - 1) + ", got " +
                                std::to_string(pages[column]));
    }
  }

  const PageRows& rows;
  PageTable table;
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
  CachedCall call(query, rows, pages, kv_len, mask,
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
  CachedCall call(query, rows, pages, kv_len, mask,
                  {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
                   py::none()});
  call.set_inputs();
  call.set_rows();
  return call.plan(thread_count);
}

}  // namespace regard
