#include "attention_call.hpp"

#include <algorithm>

#include "../platform/caches.hpp"
#include "arguments.hpp"
#include "gil.hpp"
#include "threading.hpp"

namespace regard {
namespace {

// A mask with a row or matrix for each batch entry needs the axes that it lacks.
const char* remedy_for(const Shape& mask, const Shape& weights) {
  if (weights.size() != 4) return "";
  const py::ssize_t batch = weights[0], q_len = weights[2], kv_len = weights[3];
  if (mask == Shape{batch, kv_len})
    return "; if it has a row for each batch entry, pass mask[:, None, None, :]";
  if (mask == Shape{batch, q_len, kv_len})
    return "; if it has a matrix for each batch entry, pass mask[:, None, :, :]";
  return "";
}

const char* name_of(AttentionMethod method, bool is_decode) {
  if (method == AttentionMethod::int8) return "int8";
  if (method == AttentionMethod::bfloat16) return "bfloat16";
  return is_decode ? "decode" : "forward";
}

}  // namespace

void check_shape(const ArrayView& view, const Shape& shape, const char* meaning) {
  if (view.shape == shape) return;
  throw py::value_error(std::string(view.name) + " must have the shape of " + meaning + ", " + to_text(shape) +
                        ", got shape " + to_text(view.shape));
}

bool AttentionCall::take(py::handle query_object, py::handle key_object, py::handle value_object,
                         py::handle mask_object, py::handle keywords, Accepts stored) {
  if (!parse_options(keywords, options)) return false;
  if (options.distance_bias.array) keep_input(options.distance_bias);
  if (!take_input(query, "query", query_object, Accepts::storage) ||
      !take_input(key, "key", key_object, stored) || !take_input(value, "value", value_object, stored))
    return false;
  if (!take_mask(mask_object)) return false;
  type = is_quantized(key.element) ? result_type_of({&query})
                                   : result_type_of({&query, &key, &value});
  problem.scalar = scalar_of(type.element);
  problem.l2_bytes = l2_cache_bytes();
  return true;
}

bool AttentionCall::take_input(ArrayView& view, const char* name, py::handle object, Accepts accepts) {
  if (!take_view(view, name, object, accepts)) return false;
  keep_input(view);
  return true;
}

void AttentionCall::forbid_overlap(const Result& result) const {
  for (const ArrayView* input : inputs_) result.forbid_overlap(*input, false);
}

void AttentionCall::set_sizes(py::ssize_t heads, py::ssize_t kv_heads, py::ssize_t q_len,
                              py::ssize_t kv_len) {
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.q_len = q_len;
  problem.kv_len = kv_len;
  problem.head_dim = query.size(1);
  problem.value_dim = value.size(1);
}

void AttentionCall::set_batch(const Shape& batch) {
  problem.batch = batch_of(batch, memory);
  std::int64_t rows = problem.batch.count;
  for (const std::int64_t size : {problem.heads, std::max(problem.q_len, problem.kv_len)})
    if (__builtin_mul_overflow(rows, std::max<std::int64_t>(size, 1), &rows))
      throw py::value_error("batch axes " + to_text(batch) + " have more rows than 64 bits can count, with " +
                            std::to_string(problem.heads) + " heads of " + std::to_string(problem.q_len) +
                            " queries and " + std::to_string(problem.kv_len) + " keys");
}

void AttentionCall::set_result_shapes(const Shape& rows) {
  output_shape = weights_shape = rows_shape = rows;
  output_shape.push_back(problem.value_dim);
  weights_shape.push_back(problem.kv_len);
}

// An array's heads, rows and columns, and the batch axes before them. Axes that are missing or of
// length 1 are broadcast. The row stride is kept, since only masks have broadcast rows.
Operand AttentionCall::operand_of(const ArrayView& view) {
  const int heads_axis = layout.heads_axis, rows_axis = layout.rows_axis;
  Operand operand;
  operand.data = view.data;
  operand.element = view.element;
  operand.column_stride = view.stride(1);
  operand.row_stride = view.axes() >= rows_axis ? view.stride(rows_axis) : 0;
  operand.head_stride =
      view.axes() >= heads_axis && view.size(heads_axis) != 1 ? view.stride(heads_axis) : 0;
  operand.batch_strides = batch_strides_of(view, std::min(view.axes(), 3), problem.batch, memory);
  return operand;
}

// (..., rows) as (..., rows, 1).
Operand AttentionCall::numbers_of_rows(ArrayView view) {
  view.shape.push_back(1);
  view.strides.push_back(0);
  return operand_of(view);
}

// None, a bool array or a sparse mask, a float array, or a pair of both.
bool AttentionCall::take_mask(py::handle object) {
  if (object.is_none()) return true;
  if (PyTuple_CheckExact(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == 2) {
    PyObject* const shown = PyTuple_GET_ITEM(object.ptr(), 0);
    return (take_sparse_mask(shown) || take_input(mask, "mask", shown, Accepts::bool_mask)) &&
           take_input(bias, "mask", PyTuple_GET_ITEM(object.ptr(), 1), Accepts::storage);
  }
  return take_sparse_mask(object) || take_input(mask, "mask", object, Accepts::bool_mask) ||
         take_input(bias, "mask", object, Accepts::storage);
}

bool AttentionCall::take_sparse_mask(py::handle object) {
  if (!sparse_mask.take(object)) return false;
  for (const ArrayView* view : {&sparse_mask.starts, &sparse_mask.spans, &sparse_mask.bits}) keep_input(*view);
  return true;
}

Operand AttentionCall::mask_operand_of(const ArrayView& view) {
  if (!view.array) return {};
  if (!broadcasts_to(view.shape, weights_shape))
    throw py::value_error(std::string("mask must broadcast to ") + layout.mask_meaning + " = " +
                          to_text(weights_shape) + ", got shape " + to_text(view.shape) +
                          remedy_for(view.shape, weights_shape));
  const auto stride = [&](int from_end) -> py::ssize_t {
    return view.axes() >= from_end && view.size(from_end) != 1 ? view.stride(from_end) : 0;
  };
  Operand operand;
  operand.data = view.data;
  operand.element = view.element;
  operand.column_stride = stride(1);
  operand.row_stride = stride(layout.rows_axis);
  operand.head_stride = stride(layout.heads_axis);
  operand.batch_strides = batch_strides_of(view, std::min(view.axes(), 3), problem.batch, memory);
  return operand;
}

// Queries and keys are the mask's last two axes in every layout. A single row serves all queries,
// and keys beyond the mask are hidden.
void AttentionCall::set_sparse_mask() {
  if (!sparse_mask.is_given()) return;
  const bool is_packed = problem.query_starts != nullptr;
  const Shape& own = sparse_mask.shape();
  Shape full;
  if (is_packed) {
    full = {weights_shape[1], weights_shape[0], weights_shape[2]};
  } else {
    full = weights_shape;
  }
  const py::ssize_t keys = own.end()[-1];
  Shape rows(own.begin(), own.end() - 1);
  if (keys > full.end()[-1] || !broadcasts_to(rows, Shape(full.begin(), full.end() - 1)))
    throw py::value_error(std::string("mask must broadcast to ") +
                          (is_packed ? "(heads, total, longest kv_len)" : "(..., heads, q_len, kv_len)") + " = " +
                          to_text(full) + ", or have fewer keys, got a sparse mask of shape " + to_text(own));
  sparse_mask_data_ = sparse_mask.mask();
  const ArrayView& starts = sparse_mask.starts;
  Operand& operand = sparse_mask_data_.starts;
  operand.data = starts.data;
  operand.element = starts.element;
  operand.head_stride = starts.axes() >= 2 && starts.size(2) != 1 ? starts.stride(2) : 0;
  operand.batch_strides = batch_strides_of(starts, std::min(starts.axes(), 2), problem.batch, memory);
  sparse_mask_data_.query_stride = own.end()[-2] == 1 ? 0 : 1;
  problem.sparse_mask = &sparse_mask_data_;
}

void AttentionCall::set_query(const Shape& batch) {
  set_options(problem, options, batch, layout.entries, memory);
  problem.mask = mask_operand_of(mask);
  problem.bias = mask_operand_of(bias);
  set_sparse_mask();
  problem.query = operand_of(query);
}

void AttentionCall::set_keys_and_values() {
  problem.key = operand_of(key);
  problem.value = operand_of(value);
}

int AttentionCall::threads() const { return options.threads ? *options.threads : thread_count_of(py::none()); }

py::object AttentionCall::run() {
  const Result output(options.out, type, output_shape);
  forbid_overlap(output);
  problem.output = operand_of(output.view);
  ArrayView weights, lse;
  if (options.return_weights) {
    weights = new_array("weights", type, weights_shape);
    problem.weights = operand_of(weights);
  }
  if (options.return_lse) {
    lse = new_array("lse", result_type_of(options.wide_lse ? Scalar::float64 : problem.scalar), rows_shape);
    problem.lse = numbers_of_rows(lse);
  }
  const AttentionPlan plan = plan_attention(problem, threads());
  run_work(plan.work, [&](const StopSignal& signal) { run_attention(plan, signal); });

  const py::object result = output.deliver();
  if (options.return_weights && options.return_lse)
    return py::make_tuple(result, weights.array, lse.array);
  if (options.return_weights) return py::make_tuple(result, weights.array);
  if (options.return_lse) return py::make_tuple(result, lse.array);
  return result;
}

py::tuple AttentionCall::checked() const {
  const Shape batch = problem.query_starts ? Shape{problem.batch.count} : batch_shape;
  py::tuple axes(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) axes[i] = batch[i];
  return py::make_tuple(axes, problem.heads, problem.kv_heads, problem.q_len, problem.kv_len, problem.head_dim,
                        problem.value_dim, text_of(type.dtype), rows_shape.size() > 1);
}

py::tuple AttentionCall::sizes() const {
  return py::make_tuple(problem.batch.count, problem.heads, problem.kv_heads, problem.q_len, problem.kv_len,
                        problem.head_dim, problem.value_dim);
}

py::object AttentionCall::explain() {
  // The kernel depends on whether weights are requested; nothing is written here.
  char nowhere = 0;
  if (options.return_weights) problem.weights.data = &nowhere;
  const AttentionPlan plan = plan_attention(problem, threads());
  TileCounts tiles{};
  run_without_gil([&](const StopSignal& signal) { tiles = count_tiles(plan, signal); });

  const Kernels& kernels = *plan.kernels;
  const bool is_decode = plan.kernel == &kernels.decode.kernel, has_tasks = plan.tasks.has_value();
  const bool shares_chunks = plan.shares_chunks && tiles.chunks > 0;
  const std::int64_t group_rows =
      problem.kv_heads ? problem.heads / problem.kv_heads * problem.q_len : 0;
  const std::int64_t task_rows = has_tasks ? std::min(plan.tasks->most_rows(), group_rows) : 0;
  const std::int64_t tasks = shares_chunks ? tiles.chunks : has_tasks ? plan.tasks->count() : 0;
  py::dict facts;
  facts["target"] = plan.target->name;
  facts["kernel"] = name_of(plan.method, is_decode);
  const char* const instruction = plan.method == AttentionMethod::int8       ? kernels.int8.instruction
                                  : plan.method == AttentionMethod::bfloat16 ? kernels.bfloat16.instruction
                                                                             : nullptr;
  facts["instruction"] = instruction ? py::object(py::str(instruction)) : py::none();
  facts["has_few_rows"] = has_few_rows(problem, kernels);
  facts["decoded_entries"] = entries_of_few_rows(plan);
  facts["columns"] = plan.kernel->columns;
  facts["threads"] = has_tasks ? std::min<std::int64_t>(plan.threads, tasks) : 0;
  facts["tasks"] = tasks;
  facts["task_rows"] = task_rows;
  facts["chunk_keys"] = shares_chunks ? kernels.attention.chunk_keys : 0;
  facts["strip_rows"] = is_decode && has_tasks ? task_rows : plan.kernel->tile_rows;
  facts["tile_keys"] = plan.kernel->tile_keys;
  facts["block_keys"] = kernels.attention.block_keys;
  facts["workspace_bytes"] = plan.workspace_bytes();
  facts["copies_keys"] = plan.kernel->copies_keys(problem);
  facts["copies_values"] = plan.kernel->copies_values(problem);
  facts["tiles"] = tiles.all;
  facts["tiles_visible"] = tiles.visible;
  facts["tiles_biased"] = tiles.biased;
  facts["scores_computed"] = tiles.scores;
  facts["shape"] = sizes();
  facts["result_type"] = text_of(type.dtype);
  return facts;
}

}  // namespace regard
