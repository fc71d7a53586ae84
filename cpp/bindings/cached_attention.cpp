// Attention to keys and values as a cache stores them: in pages, or as int8 with scales. The caller is
// the cache, which knows its shapes; what would read beyond an array is checked all the same.
#include <algorithm>
#include <string>

#include "arguments.hpp"
#include "attention_call.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

bool is_empty(const ArrayView& view) {
  return std::find(view.shape.begin(), view.shape.end(), 0) != view.shape.end();
}

std::string shapes_of(const ArrayView& a, const ArrayView& b) {
  return " (shapes " + to_text(a.shape) + " and " + to_text(b.shape) + ")";
}

// Sizes, and the shapes of the results, from 4-D arrays.
Shape set_shapes(AttentionCall& call, py::handle kv_len, const ArrayView* pages) {
  const ArrayView &query = call.query, &key = call.key, &value = call.value;
  for (const ArrayView* view : {&query, &key, &value})
    if (view->axes() != 4)
      throw py::value_error(std::string(view->name) + " must have 4 dimensions, got shape " +
                            to_text(view->shape));
  if (query.size(1) != key.size(1))
    throw py::value_error("query and key must share head_dim" + shapes_of(query, key));
  if (!std::equal(key.shape.begin(), key.shape.begin() + 3, value.shape.begin()))
    throw py::value_error("key and value must share all but their last axis" + shapes_of(key, value));
  if (query.size(3) != 0 && (key.size(3) == 0 || query.size(3) % key.size(3) != 0))
    throw py::value_error("the heads of query must be a multiple of those of key" +
                          shapes_of(query, key));
  const py::ssize_t batch = query.size(4);
  AttentionProblem& problem = call.problem;
  py::ssize_t room = key.size(2);
  if (pages) {
    if (pages->axes() != 2 || pages->size(2) != batch)
      throw py::value_error("pages must have shape (" + std::to_string(batch) +
                            ", pages of an entry), got " + to_text(pages->shape));
    if (key.size(2) < 1 || key.size(2) % 16 != 0)
      throw py::value_error("page_size must be a multiple of 16, got " + std::to_string(key.size(2)));
    problem.page_rows = key.size(2);
    room = pages->size(1) * key.size(2);
  } else if (key.size(4) != batch) {
    throw py::value_error("query and key must share their batch axis" + shapes_of(query, key));
  }
  const std::int64_t keys = integer_of("kv_len", kv_len);
  if (keys < 0 || keys > room)
    throw py::value_error("kv_len must be from 0 to " + std::to_string(room) + ", got " +
                          std::to_string(keys));
  call.set_sizes(query.size(3), key.size(3), query.size(2), keys);
  problem.batch = batch_of({batch}, call.memory);
  call.set_result_shapes({batch, problem.heads, problem.q_len});
  return {batch};
}

// An array whose first axis is batch entries, or pages, and whose second is heads.
Operand stored_operand(const ArrayView& view, bool has_columns, bool is_paged, Integers& memory) {
  Operand operand;
  operand.data = view.data;
  operand.element = view.element;
  operand.head_stride = view.strides[1];
  operand.row_stride = view.strides[2];
  if (has_columns) operand.column_stride = view.stride(1);
  std::int64_t* const entry_stride = memory.take(1);
  *entry_stride = is_paged ? 0 : view.strides[0];
  operand.batch_strides = entry_stride;
  if (is_paged) operand.page_stride = view.strides[0];
  return operand;
}

ArrayView scales_view(const char* name, py::handle object, const Shape& wanted) {
  ArrayView view = view_of(name, object, Accepts::floats);
  if (view.element != Element::float32)
    throw py::type_error(std::string(name) + " must be an array of float32, got an array of float64");
  if (view.shape != wanted)
    throw py::value_error(std::string(name) + " must have shape " + to_text(wanted) + ", got " +
                          to_text(view.shape));
  if (view.stride(1) != 1 && view.size(1) > 1 && !is_empty(view))
    throw py::value_error(std::string(name) + " must have its last axis side by side");
  return view;
}

ArrayView pages_view(py::handle object) {
  const py::array array = as_array("pages", object);
  if (!array.dtype().equal(py::dtype::of<std::int32_t>()) || array.ndim() == 0)
    throw py::type_error("pages must be an array of int32, got " + std::string(py::str(array.dtype())));
  ArrayView view = view_as("pages", array, Element::float32);  // of as many bytes
  if (view.stride(1) != 1 && view.size(1) > 1)
    throw py::value_error("pages must have its last axis side by side");
  return view;
}

// Throws ValueError unless the pages that hold an entry's keys lie in the pools.
void check_pages(const AttentionProblem& problem, py::ssize_t total) {
  const PerEntry& lengths = problem.key_lengths;
  const std::int64_t length_stride = lengths.batch_strides ? lengths.batch_strides[0] : 0;
  for (std::int64_t entry = 0; entry < problem.batch.count; ++entry) {
    std::int64_t keys = problem.kv_len;
    if (lengths.data) keys = std::min(keys, lengths.data[entry * length_stride]);
    const std::int32_t* pages = problem.pages + entry * problem.pages_stride;
    for (std::int64_t page = 0; page * problem.page_rows < keys; ++page)
      if (pages[page] < 0 || pages[page] >= total)
        throw py::value_error("pages must be from 0 to " + std::to_string(total - 1) + ", got " +
                              std::to_string(pages[page]));
  }
}

// As Python passes them: rows of entries, or of pages and which of them each entry has.
struct CachedRows {
  py::handle key;
  py::handle value;
  py::handle key_scales;
  py::handle value_scales;
  py::handle pages;
  py::handle kv_len;
};

constexpr Layout kCached{3, 2, "batch axes", "(..., heads, q_len, kv_len)"};

// Everything but the results.
bool prepare(AttentionCall& call, py::handle query, const CachedRows& rows, py::handle mask,
             py::handle keywords) {
  if (!call.take(query, rows.key, rows.value, mask, keywords, Accepts::cache)) return false;
  const ArrayView &key = call.key, &value = call.value;
  AttentionProblem& problem = call.problem;
  const bool is_paged = !rows.pages.is_none(), is_int8 = key.element == Element::int8;
  ArrayView table;
  if (is_paged) table = pages_view(rows.pages);
  const Shape batch = set_shapes(call, rows.kv_len, is_paged ? &table : nullptr);
  if (is_int8 != (value.element == Element::int8))
    throw py::type_error("key and value must both be int8, or neither");
  call.set_query(batch);
  problem.key = stored_operand(key, true, is_paged, call.memory);
  problem.value = stored_operand(value, true, is_paged, call.memory);
  if (is_int8) {
    Shape rows_of_all = key.shape;
    rows_of_all.pop_back();
    for (const ArrayView* view : {&key, &value})
      if (view->stride(1) != 1 && view->size(1) > 1 && !is_empty(*view))
        throw py::value_error(std::string(view->name) + " of int8 must have its columns side by side");
    problem.key_scales = stored_operand(scales_view("key_scales", rows.key_scales, rows_of_all), false,
                                        is_paged, call.memory);
    problem.value_scales = stored_operand(scales_view("value_scales", rows.value_scales, rows_of_all),
                                          false, is_paged, call.memory);
  }
  if (!is_paged) return true;
  problem.pages = static_cast<const std::int32_t*>(table.data);
  problem.pages_stride = table.strides[0];
  check_pages(problem, key.size(4));
  return true;
}

}  // namespace

py::object attention_cached(py::handle query, py::handle key, py::handle value,
                            py::handle key_scales, py::handle value_scales, py::handle pages,
                            py::handle kv_len, py::handle mask, py::handle keywords) {
  AttentionCall call(kCached);
  return prepare(call, query, {key, value, key_scales, value_scales, pages, kv_len}, mask, keywords)
             ? call.run()
             : not_implemented();
}

py::object attention_cached_plan(py::handle query, py::handle key, py::handle value,
                                 py::handle key_scales, py::handle value_scales, py::handle pages,
                                 py::handle kv_len, py::handle mask, py::handle keywords) {
  AttentionCall call(kCached);
  return prepare(call, query, {key, value, key_scales, value_scales, pages, kv_len}, mask, keywords)
             ? call.explain()
             : not_implemented();
}

}  // namespace regard
