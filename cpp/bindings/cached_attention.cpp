// Attention to keys and values in the pages of a cache or of another engine.
#include <algorithm>
#include <string>

#include "arguments.hpp"
#include "attention_call.hpp"
#include "bindings.hpp"
#include "layer_pages.hpp"
#include "starts.hpp"

namespace regard {
namespace {

constexpr Layout kCached{3, 2, "batch axes", "(..., heads, q_len, kv_len)"};
constexpr Layout kPackedQueries{2, 3, "batch entries", "(tokens, heads, kv_len)"};

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
  bool prepare(py::handle query_object, py::handle pages_object, py::handle mask_object, py::handle keywords) {
    const LayerPages& pages = py::cast<const LayerPages&>(pages_object);
    state_ = pages.state();
    rows_ = pages.rows();
    options.is_causal = true;
    options.query_offset.reset();
    if (!take(query_object, rows_->key.array, rows_->value.array, mask_object, keywords, Accepts::cache)) return false;
    if (options.precision == Precision::int8)
      throw py::value_error(
          "precision must be None or 'bfloat16' in a cache, got 'int8': 8-bit integers need the mean of all keys before "
          "the first one is computed");
    if (rows_->key_scales.array) keep_input(rows_->key_scales);
    if (rows_->value_scales.array) keep_input(rows_->value_scales);
    const PoolLayout& layout = pages.layout();
    const PoolEntries& entries = state_->pools[pages.pool()];
    problem.keep_first = layout.keep_first;
    problem.page_rows = rows_->page_rows();
    if (starts_.empty())
      set_padded_shapes();
    else
      set_packed_shapes();
    if (!pages.is_foreign() && state_->longest == 0 && query.size(starts_.empty() ? 2 : 3) > 0 && entries_of() > 0)
      throw py::value_error("the cache is empty: append keys and values first, also for the queries' own tokens");
    const bool is_default = !PyDict_GetItemString(keywords.ptr(), "query_offset");
    if (is_default && starts_.empty() && !pages.is_foreign())
      check_are_recent();
    else if (!options.query_offset && (is_default || !starts_.empty()))
      check_are_last(pages.is_foreign());
    set_query({entries_of()});
    if (layout.keep_last != kKeepAll)
      problem.window_left = problem.window_left == kUnbounded ? layout.keep_last - 1 : std::min(problem.window_left, layout.keep_last - 1);
    std::int64_t* const next_entry = memory.take(1);
    *next_entry = 1;
    if (std::any_of(state_->lengths.begin(), state_->lengths.end(), [&](std::int64_t length) { return length != state_->longest; }))
      problem.key_lengths = {state_->lengths.data(), next_entry};
    if (std::any_of(entries.evicted.begin(), entries.evicted.end(), [](std::int64_t evicted) { return evicted > 0; }))
      problem.evicted_pages = {entries.evicted.data(), next_entry};
    problem.key = page_operand(rows_->key, true);
    problem.value = page_operand(rows_->value, true);
    if (is_quantized(rows_->element())) {
      problem.key.element = problem.value.element = rows_->element();
      problem.key_scales = scale_operand(rows_->key_scales);
      problem.value_scales = scale_operand(rows_->value_scales);
      problem.are_keys_upright = rows_->are_keys_upright;
      problem.has_foreign_float8 = pages.is_foreign() && rows_->element() == Element::float8;
      if (const KeyMeans* const means = pages.key_means()) problem.key_means = means->data();
    }
    problem.pages = entries.pages->data();
    problem.pages_stride = entries.columns;
    for (std::int64_t entry = 0; problem.evicted_pages.data && entry < entries_of(); ++entry) check_sees_none_evicted(entry);
    return true;
  }

 private:
  std::int64_t entries_of() const { return static_cast<std::int64_t>(state_->entries()); }

  // Sets the sizes and the shapes of the results. A query without a batch axis has results without
  // a batch axis.
  void set_padded_shapes() {
    const py::ssize_t axes = query.axes();
    if ((axes != 4 && axes != 3) || (axes == 4 ? query.size(4) : 1) != entries_of() || query.size(1) != rows_->head_dim())
      throw py::value_error("query must be (" + std::to_string(entries_of()) + ", heads, q_len, " + std::to_string(rows_->head_dim()) +
                            "), got shape " + to_text(query.shape));
    set_shapes(query.size(3), query.size(2), Shape(query.shape.begin(), query.shape.end() - 1));
  }

  void set_packed_shapes() {
    if (query.axes() != 3 || query.size(1) != rows_->head_dim())
      throw py::value_error("query must be (tokens, heads, " + std::to_string(rows_->head_dim()) + "), got shape " +
                            to_text(query.shape));
    if (static_cast<std::int64_t>(starts_.size()) != entries_of() + 1)
      throw py::value_error("starts must have shape (" + std::to_string(entries_of() + 1) +
                            ",), one for each batch entry and the end, got shape (" + std::to_string(starts_.size()) + ",)");
    check_starts("starts", starts_, query);
    problem.query_starts = starts_.data();
    set_shapes(query.size(2), longest(starts_), {query.size(3), query.size(2)});
  }

  void set_shapes(std::int64_t heads, std::int64_t q_len, const Shape& results) {
    const std::int64_t kv_heads = rows_->key.size(3);
    if (heads % kv_heads != 0)
      throw py::value_error("query must have a multiple of the " + std::to_string(kv_heads) + " kv_heads as heads, got " +
                            std::to_string(heads) + " in shape " + to_text(query.shape));
    set_sizes(heads, kv_heads, q_len, state_->longest);
    set_batch({entries_of()});
    problem.value_dim = rows_->value_dim();
    set_result_shapes(results);
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

  std::int64_t queries_of(std::int64_t entry) const {
    const auto at = static_cast<std::size_t>(entry);
    return starts_.empty() ? problem.q_len : starts_[at + 1] - starts_[at];
  }

  // Throws ValueError unless queries without given positions can belong to the last tokens.
  void check_are_last(bool is_foreign) const {
    for (std::int64_t entry = 0; entry < entries_of() && options.is_causal; ++entry) {
      const std::int64_t keys = state_->lengths[static_cast<std::size_t>(entry)], queries = queries_of(entry);
      if (queries <= keys || (is_foreign && keys == 0)) continue;  // without tokens, queries are fully masked
      const std::string number = std::to_string(entry);
      if (is_foreign)
        throw py::value_error("lengths must count the tokens of the queries, got " + std::to_string(keys) + " for entry " + number +
                              ", which has " + std::to_string(queries) + " queries; pass query_offset if their keys are not in the pool");
      throw py::value_error("query_offset must be given: " + std::to_string(queries) + " queries of batch entry " + number +
                            " do not belong to its last tokens, of which there are " + std::to_string(keys) +
                            "; append their keys and values before attending");
    }
  }

  void check_are_recent() const {
    const std::int64_t queries = problem.q_len;
    if (queries > state_->longest && options.is_causal && entries_of() > 0)
      throw py::value_error("query_offset must be given: " + std::to_string(queries) +
                            " queries do not belong to the last tokens of a cache of " + std::to_string(state_->longest) +
                            "; append their keys and values before attending");
    const Counts& recent = state_->recent;
    if (recent.empty() || queries <= 1 || *std::min_element(recent.begin(), recent.end()) >= queries) return;
    std::string text;
    for (const std::int64_t count : recent) text += (text.empty() ? "[" : ", ") + std::to_string(count);
    throw py::value_error("query_offset must be given: the last append added " + text + "] tokens to the batch entries, so " +
                          std::to_string(queries) + " queries do not belong to the last tokens of each; pass the lengths before "
                          "that append as query_offset");
  }

  void check_sees_none_evicted(std::int64_t entry) const {
    const std::int64_t page_rows = problem.page_rows, keys = state_->lengths[static_cast<std::size_t>(entry)];
    const std::int64_t evicted = of_entry(problem.evicted_pages, entry);
    if (evicted == 0) return;
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
  State state_;
  std::shared_ptr<const PageRows> rows_;
};

}  // namespace

py::object attention_cached(py::handle query, py::handle starts, py::handle pages, py::handle mask, py::handle keywords) {
  CachedCall call(starts);
  return call.prepare(query, pages, mask, keywords) ? call.run() : not_implemented();
}

py::object attention_cached_plan(py::handle query, py::handle starts, py::handle pages, py::handle mask,
                                 py::handle keywords) {
  CachedCall call(starts);
  return call.prepare(query, pages, mask, keywords) ? call.explain() : not_implemented();
}

}  // namespace regard
