// scaled_dot_product_attention: shapes to a problem, and a problem to results.
#include "attention_binding.hpp"

#include <algorithm>
#include <utility>

#include "../dispatch/attention.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

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

// Finds sizes, batch axes and the shapes of the results.
Shape set_shapes(AttentionCall& call) {
  const ArrayView &query = call.query, &key = call.key, &value = call.value;
  check_shapes(query, key, value);
  AttentionProblem& problem = call.problem;
  problem.heads = heads_of(query);
  problem.kv_heads = heads_of(key);
  problem.q_len = query.size(2);
  problem.kv_len = key.size(2);
  problem.head_dim = query.size(1);
  problem.value_dim = value.size(1);

  Shape batch;
  const std::vector<const ArrayView*> inputs{&query, &key, &value};
  for (const ArrayView* view : inputs)
    broadcast_into(batch, batch_shape_of(*view), inputs, "batch axes (those before heads)");
  problem.batch = batch_of(batch);

  call.rows_shape = batch;
  if (query.axes() > 2 || key.axes() > 2 || value.axes() > 2)
    call.rows_shape.push_back(problem.heads);
  call.rows_shape.push_back(problem.q_len);
  call.output_shape = call.weights_shape = call.rows_shape;
  call.output_shape.push_back(problem.value_dim);
  call.weights_shape.push_back(problem.kv_len);
  return batch;
}

// A mask of every batch entry's keys, or queries and keys, needs the axes that it has left out.
const char* remedy_for(const Shape& mask, const Shape& weights) {
  if (weights.size() != 4) return "";
  const py::ssize_t batch = weights[0], q_len = weights[2], kv_len = weights[3];
  if (mask == Shape{batch, kv_len})
    return "; if it has a row for each batch entry, pass mask[:, None, None, :]";
  if (mask == Shape{batch, q_len, kv_len})
    return "; if it has a matrix for each batch entry, pass mask[:, None, :, :]";
  return "";
}

constexpr const char* kEntries = "batch axes";

}  // namespace

AttentionCall::AttentionCall(py::handle query_object, py::handle key_object,
                             py::handle value_object, Accepts stored)
    : query(view_of("query", query_object, Accepts::storage)),
      key(view_of("key", key_object, stored)),
      value(view_of("value", value_object, stored)),
      problem{},
      type(key.element == Element::int8 ? result_type_of({&query})
                                        : result_type_of({&query, &key, &value})) {
  problem.scalar = scalar_of(type.element);
}

// An array's heads, rows and columns, and its batch axes before them. Axes that are missing or of
// length 1 are broadcast; a row's stride is kept, since nobody broadcasts rows but a mask's.
Operand AttentionCall::operand_of(const ArrayView& view) const {
  Operand operand;
  operand.data = const_cast<void*>(view.array.data());
  operand.element = view.element;
  operand.column_stride = view.stride(1);
  operand.row_stride = view.axes() >= rows_axis ? view.stride(rows_axis) : 0;
  operand.head_stride =
      view.axes() >= heads_axis && view.size(heads_axis) != 1 ? view.stride(heads_axis) : 0;
  set_batch_strides(operand, view, std::min(view.axes(), 3), problem.batch);
  return operand;
}

void AttentionCall::set_mask(py::handle mask_object) {
  problem.mask.data = problem.bias.data = nullptr;
  if (mask_object.is_none()) return;
  mask = view_of("mask", mask_object, Accepts::mask);
  if (!broadcasts_to(mask.shape, weights_shape))
    throw py::value_error(std::string("mask must broadcast to ") +
                          (heads_axis == 3 ? "(..., heads, q_len, kv_len)"
                                           : "(total, heads, longest kv_len)") +
                          " = " + to_text(weights_shape) + ", got shape " + to_text(mask.shape) +
                          (heads_axis == 3 ? remedy_for(mask.shape, weights_shape) : ""));
  const auto stride = [&](int from_end) -> py::ssize_t {
    return mask.axes() >= from_end && mask.size(from_end) != 1 ? mask.stride(from_end) : 0;
  };
  Operand operand;
  operand.data = const_cast<void*>(mask.array.data());
  operand.element = mask.element;
  operand.column_stride = stride(1);
  operand.row_stride = stride(rows_axis);
  operand.head_stride = stride(heads_axis);
  set_batch_strides(operand, mask, std::min(mask.axes(), 3), problem.batch);
  (mask.element == Element::boolean ? problem.mask : problem.bias) = operand;
}

void AttentionCall::set_inputs() {
  problem.query = operand_of(query);
  problem.key = operand_of(key);
  problem.value = operand_of(value);
}

void AttentionCall::set_results(py::handle out, bool wants_weights, bool wants_lse) {
  set_inputs();
  output_.emplace_back(out, type, output_shape);
  for (const ArrayView* input : {&query, &key, &value})
    output_[0].forbid_overlap(*input, false);
  if (problem.mask.data || problem.bias.data) output_[0].forbid_overlap(mask, false);
  problem.output = operand_of(output_[0].view);
  if (wants_weights) {
    weights = new_array("weights", type, weights_shape);
    problem.weights = operand_of(weights);
  }
  if (wants_lse) {
    lse = new_array("lse", result_type_of(problem.scalar), rows_shape);
    ArrayView column = lse;  // (..., rows) as (..., rows, 1)
    column.shape.push_back(1);
    column.strides.push_back(0);
    problem.lse = operand_of(column);
  }
}

py::object AttentionCall::run(int threads) {
  run_without_gil([&](const StopSignal& signal) { attention_forward(problem, threads, signal); });
  const py::object output = output_[0].deliver();
  if (problem.weights.data && problem.lse.data)
    return py::make_tuple(output, weights.array, lse.array);
  if (problem.weights.data) return py::make_tuple(output, weights.array);
  if (problem.lse.data) return py::make_tuple(output, lse.array);
  return output;
}

py::dict AttentionCall::plan(int threads) const {
  AttentionPlan plan;
  run_without_gil(
      [&](const StopSignal& signal) { plan = plan_attention(problem, threads, signal); });
  py::dict facts;
  facts["target"] = plan.target;
  facts["kernel"] = plan.is_int8 ? "int8" : plan.is_decode ? "decode" : "forward";
  facts["int8_instruction"] =
      plan.int8_instruction ? py::object(py::str(plan.int8_instruction)) : py::none();
  facts["columns"] = plan.columns;
  facts["threads"] = plan.threads;
  facts["tasks"] = plan.tasks;
  facts["task_rows"] = plan.task_rows;
  facts["chunk_keys"] = plan.chunk_keys;
  facts["strip_rows"] = plan.strip_rows;
  facts["tile_keys"] = plan.tile_keys;
  facts["block_keys"] = plan.block_keys;
  facts["workspace_bytes"] = plan.workspace_bytes;
  facts["copies_keys"] = plan.copies_keys;
  facts["copies_values"] = plan.copies_values;
  facts["tiles"] = plan.tiles.all;
  facts["tiles_visible"] = plan.tiles.visible;
  facts["tiles_biased"] = plan.tiles.biased;
  facts["scores_computed"] = plan.tiles.scores;
  facts["shape"] = py::make_tuple(problem.batch.count, problem.heads, problem.kv_heads, problem.q_len,
                                  problem.kv_len, problem.head_dim, problem.value_dim);
  facts["result_type"] = py::str(type.dtype);
  return facts;
}

py::object attention(py::handle query, py::handle key, py::handle value, py::handle mask,
                     py::handle is_causal, py::handle query_offset, py::handle window,
                     py::handle key_lengths, py::handle scale, py::handle softcap,
                     py::handle alibi_slopes, py::handle sinks, py::handle precision,
                     py::handle return_weights, py::handle return_lse, py::handle out, py::handle threads) {
  AttentionCall call(query, key, value);
  const int thread_count = thread_count_of(threads);
  const bool wants_weights = flag_of("return_weights", return_weights);
  const bool wants_lse = flag_of("return_lse", return_lse);
  const Shape batch = set_shapes(call);
  set_options(call.problem,
              {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
               precision},
              batch, kEntries, call.memory);
  call.set_mask(mask);
  call.set_results(out, wants_weights, wants_lse);
  return call.run(thread_count);
}

py::dict attention_plan(py::handle query, py::handle key, py::handle value, py::handle mask,
                        py::handle is_causal, py::handle query_offset, py::handle window,
                        py::handle key_lengths, py::handle scale, py::handle softcap,
                        py::handle alibi_slopes, py::handle sinks, py::handle precision,
                        py::handle threads) {
  AttentionCall call(query, key, value);
  const int thread_count = thread_count_of(threads);
  const Shape batch = set_shapes(call);
  set_options(call.problem,
              {is_causal, query_offset, window, key_lengths, scale, softcap, alibi_slopes, sinks,
               precision},
              batch, kEntries, call.memory);
  call.set_mask(mask);
  call.set_inputs();
  return call.plan(thread_count);
}

}  // namespace regard
