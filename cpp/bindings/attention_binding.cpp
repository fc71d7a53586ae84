// scaled_dot_product_attention: shapes to a problem, and a problem to results.
#include <algorithm>
#include <cmath>

#include "../dispatch/attention.hpp"
#include "arguments.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

// Positions are sums of two of these.
constexpr std::int64_t kFarthest = std::int64_t{1} << 61;

// The last three axes of an operand; a 2-D array has no heads axis, which reads as one head.
void set_inner_strides(Operand& operand, const ArrayView& view) {
  operand.head_stride = view.axes() > 2 && view.size(3) != 1 ? view.stride(3) : 0;
  operand.row_stride = view.stride(2);
  operand.column_stride = view.stride(1);
}

Operand operand_of(const ArrayView& view, const BatchShape& batch) {
  Operand operand;
  operand.data = const_cast<void*>(view.array.data());
  set_inner_strides(operand, view);
  set_batch_strides(operand, view, std::min(view.axes(), 3), batch);
  return operand;
}

py::ssize_t heads_of(const ArrayView& view) { return view.axes() > 2 ? view.size(3) : 1; }

Shape batch_shape_of(const ArrayView& view) {
  return view.axes() > 3 ? Shape(view.shape.begin(), view.shape.end() - 3) : Shape();
}

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

// An operand for `mask` broadcast to (batch..., heads, q_len, kv_len).
Operand mask_operand(const ArrayView& mask, const AttentionProblem& problem,
                     const Shape& weights_shape) {
  if (!broadcasts_to(mask.shape, weights_shape))
    throw py::value_error("mask must broadcast to (..., heads, q_len, kv_len) = " +
                          to_text(weights_shape) + ", got shape " + to_text(mask.shape));
  Operand operand;
  operand.data = const_cast<void*>(mask.array.data());
  const auto stride = [&](int from_end) -> py::ssize_t {
    return mask.axes() >= from_end && mask.size(from_end) != 1 ? mask.stride(from_end) : 0;
  };
  operand.column_stride = stride(1);
  operand.row_stride = stride(2);
  operand.head_stride = stride(3);
  set_batch_strides(operand, mask, std::min(mask.axes(), 3), problem.batch);
  return operand;
}

// One offset a batch entry. `storage` keeps what the operand points to.
struct Offsets {
  std::int64_t single = 0;
  py::array array;
};

Operand offset_operand(py::handle query_offset, const AttentionProblem& problem,
                       const Shape& batch, Offsets& storage) {
  const auto clamped = [](std::int64_t offset) {
    return std::clamp(offset, -kFarthest, kFarthest);
  };
  Operand operand{};
  if (PyLong_CheckExact(query_offset.ptr())) {
    storage.single = clamped(whole_number_of("query_offset", query_offset));
    operand.data = &storage.single;
    return operand;
  }
  const py::module_ numpy = py::module_::import("numpy");
  const py::array given = numpy.attr("asarray")(query_offset);
  if (given.dtype().kind() != 'i' && given.dtype().kind() != 'u')
    throw py::type_error("query_offset must be an integer or an array of integers, got " +
                         (given.ndim() == 0 ? std::string(Py_TYPE(query_offset.ptr())->tp_name)
                                            : std::string(py::str(given.dtype()))));
  if (given.size() > 0 && numpy.attr("max")(given) > py::int_(INT64_MAX))
    throw py::value_error("query_offset must fit in 64 bits, got " +
                          std::string(py::str(numpy.attr("max")(given))));
  // A copy of our own, of known type, that a neighbouring thread cannot change under us.
  storage.array = numpy.attr("clip")(given, -kFarthest, kFarthest)
                      .attr("astype")("int64", py::arg("order") = "C");
  ArrayView view{"query_offset", storage.array, {}, {}};
  for (py::ssize_t axis = 0; axis < storage.array.ndim(); ++axis) {
    view.shape.push_back(storage.array.shape(axis));
    view.strides.push_back(storage.array.strides(axis) / 8);
  }
  if (!broadcasts_to(view.shape, batch))
    throw py::value_error("query_offset must be an integer or broadcast to the batch axes " +
                          to_text(batch) + ", got shape " + to_text(view.shape));
  operand.data = const_cast<void*>(storage.array.data());
  set_batch_strides(operand, view, 0, problem.batch);
  return operand;
}

}  // namespace

py::object attention(py::handle query_object, py::handle key_object, py::handle value_object,
                     py::handle mask_object, py::handle is_causal, py::handle query_offset,
                     py::handle scale, py::handle return_weights, py::handle return_lse,
                     py::handle out, py::handle threads) {
  const ArrayView query = float_view("query", query_object);
  const ArrayView key = float_view("key", key_object);
  const ArrayView value = float_view("value", value_object);
  const int thread_count = thread_count_of(threads);
  const bool wants_weights = flag_of("return_weights", return_weights);
  const bool wants_lse = flag_of("return_lse", return_lse);
  check_shapes(query, key, value);

  AttentionProblem problem;
  problem.scalar = scalar_of(query);
  if (scalar_of(key) != problem.scalar || scalar_of(value) != problem.scalar)
    throw py::type_error("query, key and value must share a type");
  problem.is_causal = flag_of("is_causal", is_causal);
  problem.heads = heads_of(query);
  problem.kv_heads = heads_of(key);
  problem.q_len = query.size(2);
  problem.kv_len = key.size(2);
  problem.head_dim = query.size(1);
  problem.value_dim = value.size(1);
  problem.scale = scale.is_none() ? 1.0 / std::sqrt(static_cast<double>(problem.head_dim))
                                  : finite_number_of("scale", scale);

  Shape batch;
  const std::vector<const ArrayView*> inputs{&query, &key, &value};
  for (const ArrayView* view : inputs)
    broadcast_into(batch, batch_shape_of(*view), inputs, "batch axes (those before heads)");
  problem.batch = batch_of(batch);
  problem.query = operand_of(query, problem.batch);
  problem.key = operand_of(key, problem.batch);
  problem.value = operand_of(value, problem.batch);

  Shape rows_shape = batch;
  if (query.axes() > 2 || key.axes() > 2 || value.axes() > 2) rows_shape.push_back(problem.heads);
  rows_shape.push_back(problem.q_len);
  Shape output_shape = rows_shape, weights_shape = rows_shape;
  output_shape.push_back(problem.value_dim);
  weights_shape.push_back(problem.kv_len);

  problem.mask_kind = MaskKind::none;
  problem.mask.data = nullptr;
  problem.mask.head_stride = 0;
  std::vector<const ArrayView*> read = inputs;
  ArrayView mask;
  if (!mask_object.is_none()) {
    mask = mask_view(mask_object);
    problem.mask_kind = mask_kind_of(mask);
    problem.mask = mask_operand(mask, problem, weights_shape);
    read.push_back(&mask);
  }
  Offsets offsets;
  problem.query_offset = offset_operand(query_offset, problem, batch, offsets);

  Result output(out, problem.scalar, output_shape);
  for (const ArrayView* input : read) output.forbid_overlap(*input, false);
  problem.output = operand_of(output.view, problem.batch);

  ArrayView weights, lse;
  problem.weights.data = problem.lse.data = nullptr;
  problem.weights.head_stride = problem.lse.head_stride = 0;
  if (wants_weights) {
    weights = float_view("weights", new_array(problem.scalar, weights_shape));
    problem.weights = operand_of(weights, problem.batch);
  }
  if (wants_lse) {
    lse = float_view("lse", new_array(problem.scalar, rows_shape));
    ArrayView column = lse;  // (..., rows) as (..., rows, 1)
    column.shape.push_back(1);
    column.strides.push_back(0);
    problem.lse = operand_of(column, problem.batch);
  }

  run_without_gil(
      [&](const StopSignal& signal) { attention_forward(problem, thread_count, signal); });

  const py::object delivered = output.deliver();
  if (wants_weights && wants_lse) return py::make_tuple(delivered, weights.array, lse.array);
  if (wants_weights) return py::make_tuple(delivered, weights.array);
  if (wants_lse) return py::make_tuple(delivered, lse.array);
  return delivered;
}

}  // namespace regard
