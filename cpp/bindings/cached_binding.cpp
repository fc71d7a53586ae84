// Attention to keys and values as a cache stores them: in pages, or as int8 with scales. The caller is
// the cache, which knows its shapes; what would read beyond an array is checked all the same.
#include <algorithm>
#include <string>

#include "attention_binding.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

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
  if (!std::equal(key.shape.begin(), key.shape.end() - 1, value.shape.begin()))
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
  problem.kv_len = whole_number_of("kv_len", kv_len);
  if (problem.kv_len < 0 || problem.kv_len > room)
    throw py::value_error("kv_len must be from 0 to " + std::to_string(room) + ", got " +
                          std::to_string(problem.kv_len));
  problem.heads = query.size(3);
  problem.kv_heads = key.size(3);
  problem.q_len = query.size(2);
  problem.head_dim = query.size(1);
  problem.value_dim = value.size(1);
  problem.batch = batch_of({batch});
  call.rows_shape = {batch, problem.heads, problem.q_len};
  call.output_shape = call.weights_shape = call.rows_shape;
  call.output_shape.push_back(problem.value_dim);
  call.weights_shape.push_back(problem.kv_len);
  return {batch};
}

// An array whose first axis is batch entries, or pages, and whose second is heads.
Operand stored_operand(const ArrayView& view, bool has_columns, bool is_paged) {
  Operand operand{};
  operand.data = const_cast<void*>(view.array.data());
  operand.element = view.element;
  operand.head_stride = view.strides[1];
  operand.row_stride = view.strides[2];
  if (has_columns) operand.column_stride = view.stride(1);
  (is_paged ? operand.page_stride : operand.batch_strides[0]) = view.strides[0];
  return operand;
}

ArrayView scales_view(const char* name, py::handle object, const Shape& wanted) {
  ArrayView view = view_of(name, object, Accepts::floats);
  if (view.element != Element::float32)
    throw py::type_error(std::string(name) + " must be an array of float32, got an array of float64");
  if (view.shape != wanted)
    throw py::value_error(std::string(name) + " must have shape " + to_text(wanted) + ", got " +
                          to_text(view.shape));
  if (view.stride(1) != 1 && view.size(1) > 1 && view.array.size() > 0)
    throw py::value_error(std::string(name) + " must have its last axis side by side");
  return view;
}

ArrayView pages_view(py::handle object) {
  const py::array array = as_array("pages", object);
  if (!array.dtype().equal(py::dtype::of<std::int32_t>()) || array.ndim() == 0)
    throw py::type_error("pages must be an array of int32, got " + std::string(py::str(array.dtype())));
  ArrayView view{"pages", Element::int32, array, {}, {}};
  view.shape.assign(array.shape(), array.shape() + array.ndim());
  for (py::ssize_t axis = 0; axis < array.ndim(); ++axis)
    view.strides.push_back(array.strides(axis) / 4);
  if (view.stride(1) != 1 && view.size(1) > 1)
    throw py::value_error("pages must have its last axis side by side");
  return view;
}

// Those that an entry's keys are in lie in the pools.
void check_pages(const AttentionProblem& problem, py::ssize_t total) {
  const std::int64_t entries = problem.batch.count;
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    std::int64_t keys = problem.kv_len;
    if (problem.key_lengths.data)
      keys = std::min(keys, static_cast<const std::int64_t*>(
                                problem.key_lengths.data)[entry * problem.key_lengths.batch_strides[0]]);
    const auto* pages = static_cast<const std::int32_t*>(problem.pages.data) +
                        entry * problem.pages.batch_strides[0];
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

// A call with everything checked and set but where rows and results lie.
struct CachedCall : AttentionCall {
  CachedCall(py::handle query, const CachedRows& rows, py::handle mask, const AttentionOptions& options)
      : AttentionCall(query, rows.key, rows.value, Accepts::cache), is_paged(!rows.pages.is_none()) {
    if (is_paged) table = pages_view(rows.pages);
    const Shape batch = set_shapes(*this, rows.kv_len, is_paged ? &table : nullptr);
    if (is_int8() != (value.element == Element::int8))
      throw py::type_error("key and value must both be int8, or neither");
    if (is_int8()) {
      Shape rows_of_all = key.shape;
      rows_of_all.pop_back();
      scales_of_keys = scales_view("key_scales", rows.key_scales, rows_of_all);
      scales_of_values = scales_view("value_scales", rows.value_scales, rows_of_all);
      for (const ArrayView* view : {&key, &value})
        if (view->stride(1) != 1 && view->size(1) > 1 && view->array.size() > 0)
          throw py::value_error(std::string(view->name) + " of int8 must have its columns side by side");
    }
    set_options(problem, options, batch, "batch axes", memory);
    set_mask(mask);
  }

  bool is_int8() const { return key.element == Element::int8; }

  // Locates what the cache holds, in place of what the dense call would make of these arrays.
  void set_rows() {
    problem.key = stored_operand(key, true, is_paged);
    problem.value = stored_operand(value, true, is_paged);
    if (is_int8()) {
      problem.key_scales = stored_operand(scales_of_keys, false, is_paged);
      problem.value_scales = stored_operand(scales_of_values, false, is_paged);
    }
    if (!is_paged) return;
    problem.pages.data = const_cast<void*>(table.array.data());
    problem.pages.element = Element::int32;
    problem.pages.batch_strides[0] = table.strides[0];
    check_pages(problem, key.size(4));
  }

  bool is_paged;
  ArrayView table, scales_of_keys, scales_of_values;
};

}  // namespace

py::object attention_cached(py::handle query, py::handle key, py::handle value,
                            py::handle key_scales, py::handle value_scales,
                            py::handle pages, py::handle kv_len, py::handle mask,
                            py::handle is_causal, py::handle query_offset, py::handle window,
                            py::handle key_lengths, py::handle scale, py::handle softcap,
                            py::handle alibi_slopes, py::handle sinks, py::handle return_weights,
                            py::handle return_lse, py::handle out, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  const bool wants_weights = flag_of("return_weights", return_weights);
  const bool wants_lse = flag_of("return_lse", return_lse);
  CachedCall call(query, {key, value, key_scales, value_scales, pages, kv_len}, mask,
                  {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
                   py::none()});
  call.set_results(out, wants_weights, wants_lse);
  call.set_rows();
  return call.run(thread_count);
}

py::dict attention_cached_plan(py::handle query, py::handle key, py::handle value,
                               py::handle key_scales, py::handle value_scales,
                               py::handle pages, py::handle kv_len, py::handle mask,
                               py::handle is_causal, py::handle query_offset, py::handle window,
                               py::handle key_lengths, py::handle scale, py::handle softcap,
                               py::handle alibi_slopes, py::handle sinks, py::handle threads) {
  const int thread_count = thread_count_of(threads);
  CachedCall call(query, {key, value, key_scales, value_scales, pages, kv_len}, mask,
                  {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
                   py::none()});
  call.set_inputs();
  call.set_rows();
  return call.plan(thread_count);
}

}  // namespace regard
