// scaled_dot_product_attention: arrays of (batch..., heads, length, dim).
#include "attention_calls.hpp"

namespace regard {
namespace {

py::ssize_t heads_of(const ArrayView& view) { return view.axes() > 2 ? view.size(3) : 1; }

std::string pair_of(py::ssize_t a, py::ssize_t b) {
  return std::to_string(a) + " and " + std::to_string(b);
}

void check_shapes(const ArrayView& query, const ArrayView& key, const ArrayView& value) {
  for (const ArrayView* view : {&query, &key, &value})
    if (view->axes() < 2)
      throw py::value_error(std::string(view->name) +
                            " must have at least 2 dimensions, (length, dim), got shape " +
                            to_text(view->shape));
  if (query.size(1) != key.size(1))
    throw py::value_error("query and key must share head_dim, got " +
                          pair_of(query.size(1), key.size(1)) + " (shapes " +
                          to_text(query.shape) + " and " + to_text(key.shape) + ")");
  if (query.size(1) == 0)
    throw py::value_error("query and key must have a head_dim of at least 1, got shapes " +
                          to_text(query.shape) + " and " + to_text(key.shape));
  if (key.size(2) != value.size(2))
    throw py::value_error("key and value must share kv_len, got " +
                          pair_of(key.size(2), value.size(2)) + " (shapes " + to_text(key.shape) +
                          " and " + to_text(value.shape) + ")");
  if (heads_of(key) != heads_of(value))
    throw py::value_error("key and value must share kv_heads, got " +
                          pair_of(heads_of(key), heads_of(value)) + " (shapes " +
                          to_text(key.shape) + " and " + to_text(value.shape) + ")");
  const py::ssize_t heads = heads_of(query), kv_heads = heads_of(key);
  if (heads != 0 && (kv_heads == 0 || heads % kv_heads != 0))
    throw py::value_error("the heads of query must be a multiple of the kv_heads of key and value, "
                          "got " + pair_of(heads, kv_heads) + " (shapes " + to_text(query.shape) +
                          " and " + to_text(key.shape) + ")");
}

}  // namespace

const Layout kDense{3, 2, "batch axes", "(..., heads, q_len, kv_len)"};

bool prepare_dense(AttentionCall& call, py::handle query_object, py::handle key_object,
             py::handle value_object, py::handle mask, py::handle keywords) {
  if (!call.take(query_object, key_object, value_object, mask, keywords)) return false;
  const ArrayView &query = call.query, &key = call.key, &value = call.value;
  check_shapes(query, key, value);
  call.set_sizes(heads_of(query), heads_of(key), query.size(2), key.size(2));
  const Shape batch = broadcast_outer({&query, &key, &value}, 3, "batch axes (those before heads)");
  call.set_batch(batch);
  call.batch_shape = batch;
  Shape rows = batch;
  if (query.axes() > 2 || key.axes() > 2 || value.axes() > 2) rows.push_back(call.problem.heads);
  rows.push_back(call.problem.q_len);
  call.set_result_shapes(rows);
  call.set_query(batch);
  call.set_keys_and_values();
  return true;
}

}  // namespace regard
