// scaled_dot_product_attention: arrays of (batch..., heads, length, dim).
#include "attention_call.hpp"
#include "backward_call.hpp"
#include "bindings.hpp"
#include "summary_call.hpp"
#include "tangent_call.hpp"

namespace regard {
namespace {

constexpr Layout kDense{3, 2, "batch axes", "(..., heads, q_len, kv_len)"};

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

// Checks and sets everything but the results.
bool prepare(AttentionCall& call, py::handle query_object, py::handle key_object,
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

}  // namespace

py::object attention(py::handle query, py::handle key, py::handle value, py::handle mask,
                     py::handle keywords) {
  AttentionCall call(kDense);
  return prepare(call, query, key, value, mask, keywords) ? call.run() : not_implemented();
}

py::object attention_backward(py::handle query, py::handle key, py::handle value, py::handle mask,
                              py::handle keywords, py::handle grad_output, py::handle output, py::handle lse,
                              py::handle grad_lse, py::handle wanted, py::handle out) {
  AttentionCall call(kDense);
  if (!prepare(call, query, key, value, mask, keywords)) return not_implemented();
  return gradients_of(call, {grad_output, output, lse, grad_lse, wanted, out});
}

py::object attention_jvp(py::handle query, py::handle key, py::handle value, py::handle mask, py::handle keywords,
                         py::handle tangent_query, py::handle tangent_key, py::handle tangent_value) {
  AttentionCall call(kDense);
  if (!prepare(call, query, key, value, mask, keywords)) return not_implemented();
  return tangents_of(call, tangent_query, tangent_key, tangent_value);
}

py::object attention_summary(py::handle query, py::handle key, py::handle mask, py::handle keywords, py::handle lse,
                             py::handle wanted, py::handle first_keys, py::handle local_reach, py::handle top_count,
                             py::handle induction_keys, py::handle progress) {
  AttentionCall call(kDense);
  if (!prepare(call, query, key, key, mask, keywords)) return not_implemented();
  return summary_of(call, {lse, wanted, first_keys, local_reach, top_count, induction_keys, progress});
}

py::object attention_map(py::handle query, py::handle key, py::handle mask, py::handle keywords, py::handle lse,
                         py::handle extent, py::handle pooling, py::handle progress) {
  AttentionCall call(kDense);
  if (!prepare(call, query, key, key, mask, keywords)) return not_implemented();
  return map_of(call, {lse, extent, pooling, progress});
}

py::object check_attention(py::handle query, py::handle key, py::handle value, py::handle mask, py::handle keywords) {
  AttentionCall call(kDense);
  if (!prepare(call, query, key, value, mask, keywords)) return not_implemented();
  return call.checked(call.batch_shape);
}

py::object attention_plan(py::handle query, py::handle key, py::handle value, py::handle mask,
                          py::handle keywords) {
  AttentionCall call(kDense);
  return prepare(call, query, key, value, mask, keywords) ? call.explain() : not_implemented();
}

}  // namespace regard
