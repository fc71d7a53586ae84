// scaled_dot_product_attention_ragged: sequences of different lengths, packed one after another in arrays of
// (total, heads, dim).
#include <algorithm>
#include <cstdint>

#include "attention_calls.hpp"

namespace regard {
namespace {

void check_packed_shapes(const ArrayView& query, const ArrayView& key, const ArrayView& value) {
  const std::string shapes = " (shapes " + to_text(query.shape) + ", " + to_text(key.shape) +
                             " and " + to_text(value.shape) + ")";
  for (const ArrayView* view : {&query, &key, &value})
    if (view->axes() != 3)
      throw py::value_error(std::string(view->name) +
                            " must have 3 dimensions, (total, heads, dim), got shape " +
                            to_text(view->shape));
  const auto differ = [&](const char* what, py::ssize_t a, py::ssize_t b) {
    return py::value_error(std::string(what) + ", got " + std::to_string(a) + " and " +
                           std::to_string(b) + shapes);
  };
  if (query.size(1) != key.size(1))
    throw differ("query and key must share head_dim", query.size(1), key.size(1));
  if (query.size(1) == 0)
    throw py::value_error("query and key must have a head_dim of at least 1" + shapes);
  if (key.size(3) != value.size(3))
    throw differ("key and value must share their length", key.size(3), value.size(3));
  if (key.size(2) != value.size(2))
    throw differ("key and value must share kv_heads", key.size(2), value.size(2));
  const py::ssize_t heads = query.size(2), kv_heads = key.size(2);
  if (heads != 0 && (kv_heads == 0 || heads % kv_heads != 0))
    throw differ("the heads of query must be a multiple of the kv_heads of key and value", heads,
                 kv_heads);
}

// A sequence's length limits its key_lengths and left_padding, as kv_len does in the dense call.
void check_numbers_of_keys(const char* name, const PerEntry& lengths, const Starts& key_starts) {
  if (!lengths.data) return;
  for (std::size_t i = 0; i + 1 < key_starts.size(); ++i) {
    const std::int64_t present = key_starts[i + 1] - key_starts[i];
    const std::int64_t stride = lengths.batch_strides ? lengths.batch_strides[0] : 0;
    const std::int64_t length = lengths.data[static_cast<std::int64_t>(i) * stride];
    if (length > present)
      throw py::value_error(std::string(name) + " must be from 0 to each sequence's length, got " +
                            std::to_string(length) + " for sequence " + std::to_string(i) + " of " +
                            std::to_string(present) + " keys");
  }
}

}  // namespace

const Layout kRagged{2, 3, "sequences", "(total, heads, longest kv_len)"};

bool prepare_ragged(AttentionCall& call, py::handle query_object, py::handle key_object,
             py::handle value_object, const Starts& query_starts, const Starts& key_starts,
             py::handle mask, py::handle keywords) {
  if (!call.take(query_object, key_object, value_object, mask, keywords)) return false;
  const ArrayView &query = call.query, &key = call.key;
  check_packed_shapes(query, key, call.value);
  check_starts("query_starts", query_starts, query);
  check_starts("key_starts", key_starts, key);
  if (query_starts.size() != key_starts.size())
    throw py::value_error("query_starts and key_starts must have one length, got " +
                          std::to_string(query_starts.size()) + " and " +
                          std::to_string(key_starts.size()));
  call.set_sizes(query.size(2), key.size(2), longest(query_starts), longest(key_starts));
  call.problem.query_starts = query_starts.data();
  call.problem.key_starts = key_starts.data();
  const Shape batch{static_cast<py::ssize_t>(query_starts.size()) - 1};
  call.set_batch(batch);
  call.set_result_shapes({query.size(3), call.problem.heads});
  call.set_query(batch);
  call.set_keys_and_values();
  check_numbers_of_keys("key_lengths", call.problem.key_lengths, key_starts);
  check_numbers_of_keys("left_padding", call.problem.left_padding, key_starts);
  return true;
}

}  // namespace regard
