// scaled_dot_product_attention_ragged: sequences of different lengths, packed one behind another.
#include <algorithm>
#include <cstdint>

#include "attention_binding.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

// starts[b] is where sequence b begins, the last one is where all end.
std::vector<std::int64_t> starts_of(const char* name, py::handle object, const char* packed,
                                    py::ssize_t total) {
  const py::array given = integers_of(name, object, "an array of integers");
  if (given.ndim() != 1 || given.shape(0) < 1)
    throw py::value_error(std::string(name) + " must have shape (sequences + 1,), got shape " +
                          to_text(Shape(given.shape(), given.shape() + given.ndim())));
  const py::object most = py::module_::import("numpy").attr("max")(given);
  if (most > py::int_(INT64_MAX))
    throw py::value_error(std::string(name) + " must fit in 64 bits, got " +
                          std::string(py::str(most)));
  const py::array_t<std::int64_t, py::array::c_style | py::array::forcecast> numbers(given);
  const std::vector<std::int64_t> starts(numbers.data(), numbers.data() + numbers.size());
  if (starts.front() != 0)
    throw py::value_error(std::string(name) + " must begin with 0, got " +
                          std::to_string(starts.front()));
  for (std::size_t i = 1; i < starts.size(); ++i)
    if (starts[i] < starts[i - 1])
      throw py::value_error(std::string(name) + " must not decrease, got " +
                            std::to_string(starts[i]) + " after " + std::to_string(starts[i - 1]) +
                            " at index " + std::to_string(i));
  if (starts.back() != total)
    throw py::value_error(std::string(name) + " must end with the length of " + packed + ", " +
                          std::to_string(total) + ", got " + std::to_string(starts.back()));
  return starts;
}

std::int64_t longest(const std::vector<std::int64_t>& starts) {
  std::int64_t most = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) most = std::max(most, starts[i] - starts[i - 1]);
  return most;
}

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

// A sequence's length bounds its key_lengths, as kv_len does in the dense call.
void check_key_lengths(const AttentionProblem& problem,
                       const std::vector<std::int64_t>& key_starts) {
  if (!problem.key_lengths.data) return;
  const auto* lengths = static_cast<const std::int64_t*>(problem.key_lengths.data);
  for (std::size_t i = 0; i + 1 < key_starts.size(); ++i) {
    const std::int64_t present = key_starts[i + 1] - key_starts[i];
    const std::int64_t length =
        lengths[static_cast<std::int64_t>(i) * problem.key_lengths.batch_strides[0]];
    if (length > present)
      throw py::value_error("key_lengths must be from 0 to each sequence's length, got " +
                            std::to_string(length) + " for sequence " + std::to_string(i) + " of " +
                            std::to_string(present) + " keys");
  }
}

}  // namespace

py::object attention_ragged(py::handle query, py::handle key, py::handle value,
                            py::handle query_starts_object, py::handle key_starts_object,
                            py::handle mask, py::handle is_causal, py::handle query_offset,
                            py::handle window, py::handle key_lengths, py::handle scale,
                            py::handle softcap, py::handle alibi_slopes, py::handle sinks,
                            py::handle precision, py::handle return_weights,
                            py::handle return_lse, py::handle out, py::handle threads) {
  AttentionCall call(query, key, value);
  const int thread_count = thread_count_of(threads);
  const bool wants_weights = flag_of("return_weights", return_weights);
  const bool wants_lse = flag_of("return_lse", return_lse);
  check_packed_shapes(call.query, call.key, call.value);
  const std::vector<std::int64_t> query_starts =
      starts_of("query_starts", query_starts_object, "query", call.query.size(3));
  const std::vector<std::int64_t> key_starts =
      starts_of("key_starts", key_starts_object, "key", call.key.size(3));
  if (query_starts.size() != key_starts.size())
    throw py::value_error("query_starts and key_starts must have one length, got " +
                          std::to_string(query_starts.size()) + " and " +
                          std::to_string(key_starts.size()));

  call.heads_axis = 2;
  call.rows_axis = 3;
  AttentionProblem& problem = call.problem;
  const py::ssize_t sequences = static_cast<py::ssize_t>(query_starts.size()) - 1;
  problem.batch = batch_of({sequences});
  problem.heads = call.query.size(2);
  problem.kv_heads = call.key.size(2);
  problem.q_len = longest(query_starts);
  problem.kv_len = longest(key_starts);
  problem.head_dim = call.query.size(1);
  problem.value_dim = call.value.size(1);
  problem.query_starts = query_starts.data();
  problem.key_starts = key_starts.data();
  call.rows_shape = {call.query.size(3), problem.heads};
  call.output_shape = call.weights_shape = call.rows_shape;
  call.output_shape.push_back(problem.value_dim);
  call.weights_shape.push_back(problem.kv_len);
  set_options(problem,
              {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
               precision},
              {sequences}, "sequences", call.memory);
  check_key_lengths(problem, key_starts);
  call.set_mask(mask);
  call.set_results(out, wants_weights, wants_lse);
  return call.run(thread_count);
}

}  // namespace regard
