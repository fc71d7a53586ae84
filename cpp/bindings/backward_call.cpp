#include <algorithm>
#include <optional>
#include <string>

#include "../dispatch/compute.hpp"
#include "arguments.hpp"
#include "attention_calls.hpp"
#include "gil.hpp"

namespace regard {
namespace {

enum Input { kQuery, kKey, kValue, kMask, kSlopes, kSinks, kDistances };

bool is_wider(const ArrayView& view, const AttentionCall& call) {
  return call.problem.scalar == Scalar::float32 && view.element == Element::float64;
}

void check_type(const ArrayView& view, const AttentionCall& call) {
  if (!is_wider(view, call)) return;
  throw py::type_error(std::string(view.name) + " must be float32, float16 or bfloat16, since query, key and value give " +
                       text_of(call.type.dtype) + ", got " + describe(view.array));
}

// The names of a gradient, and of the caller's array for it, in messages.
struct GradientNames {
  const char* gradient;
  const char* out;
};

// The gradient of one input. If its batch axes are broadcast, it is computed for all entries and
// then summed. If its type is narrower than float64 and the kernels compute in float64, it is
// rounded at the end.
class Gradient {
 public:
  Gradient(AttentionCall& call, const ArrayView& input, const GradientNames& names, py::handle out, const Shape& batch)
      : call_(call) {
    ResultType type;
    type.widen(input);
    result_.emplace(out, type, input.shape, nullptr, names.out);
    Shape full = batch;
    const int inner = std::min(input.axes(), 3);
    if (inner == 2 && !batch.empty()) full.push_back(1);  // heads
    for (int axis = inner; axis > 0; --axis) full.push_back(input.size(axis));
    const bool is_rounded = call.problem.scalar == Scalar::float64 && input.element != Element::float64;
    is_apart_ = full != input.shape || is_rounded;
    view_ = is_apart_ ? new_array(names.gradient, result_type_of(call.problem.scalar), full) : result_->view;
  }

  const Result& result() const { return *result_; }
  Operand operand() { return call_.operand_of(view_); }

  py::object deliver() {
    if (is_apart_) sum_over_batch();
    return result_->deliver();
  }

 private:
  void sum_over_batch() {
    const Shape& own = result_->view.shape;
    const std::size_t missing = view_.shape.size() - own.size();
    py::list axes;
    for (std::size_t axis = 0; axis < view_.shape.size(); ++axis)
      if (axis < missing || own[axis - missing] != view_.shape[axis]) axes.append(axis);
    const py::module_ numpy = py::module_::import("numpy");
    const py::object sum = call_python(numpy.attr("sum"), view_.array, py::tuple(axes), py::str("float64"));
    call_python(numpy.attr("copyto"), result_->view.array,
                call_python(sum.attr("reshape"), result_->view.array.attr("shape")), py::str("unsafe"));
  }

  AttentionCall& call_;
  std::optional<Result> result_;
  bool is_apart_ = false;
  ArrayView view_;
};

}  // namespace

py::object gradients_of(AttentionCall& call, py::handle grad_output_object, py::handle output_object,
                        py::handle lse_object, py::handle grad_lse_object, py::handle wanted_object, py::handle out) {
  if (call.options.precision == Precision::int8)
    throw py::value_error("precision must be None or 'bfloat16' for gradients, got 'int8': int8 has no gradients");
  if (call.options.score_function && !call.options.score_function->function.derivative)
    throw py::value_error("gradients need the derivative of score_function: ScoreFunction(function, derivative)");
  ArrayView grad_output, output, lse, grad_lse;
  if (!call.take_input(grad_output, "grad_output", grad_output_object, Accepts::storage) ||
      !call.take_input(output, "output", output_object, Accepts::storage) ||
      !call.take_input(lse, "lse", lse_object, Accepts::floats) ||
      (!grad_lse_object.is_none() && !call.take_input(grad_lse, "grad_lse", grad_lse_object, Accepts::floats)))
    return not_implemented();
  if (is_wider(grad_output, call)) return not_implemented();  // Python rounds it
  check_type(output, call);
  check_shape(grad_output, call.output_shape, "output");
  check_shape(output, call.output_shape, "the forward call's output");
  check_shape(lse, call.rows_shape, "the forward call's lse");
  if (grad_lse.array) check_shape(grad_lse, call.rows_shape, "lse");

  const py::tuple wanted = py::reinterpret_borrow<py::tuple>(wanted_object);
  const auto wants = [&](Input input) { return wanted[input].cast<bool>(); };
  const auto out_of = [&](Input input) -> py::object {
    return out.is_none() ? py::none() : py::object(py::tuple(py::reinterpret_borrow<py::tuple>(out))[input]);
  };
  BackwardProblem problem{};
  std::optional<Gradient> gradients[3];
  const ArrayView* const inputs[] = {&call.query, &call.key, &call.value};
  const GradientNames names[] = {
      {"gradient of query", "out.query"}, {"gradient of key", "out.key"}, {"gradient of value", "out.value"}};
  Operand* const operands[] = {&problem.grad_query, &problem.grad_key, &problem.grad_value};
  for (const Input input : {kQuery, kKey, kValue}) {
    if (!wants(input)) continue;
    gradients[input].emplace(call, *inputs[input], names[input], out_of(input), call.batch_shape);
    call.forbid_overlap(gradients[input]->result());
    for (int before = 0; before < input; ++before)
      if (gradients[before]) gradients[input]->result().forbid_overlap(gradients[before]->result());
    *operands[input] = gradients[input]->operand();
  }
  py::object grad_bias = py::none();
  ArrayView bias_view;
  if (wants(kMask)) {
    // Sums of many gradients are computed in float64.
    const bool is_whole = call.bias.shape == call.weights_shape;
    const Scalar scalar = is_whole ? call.problem.scalar : Scalar::float64;
    bias_view = new_zeros("gradient of mask", result_type_of(scalar), call.bias.shape);
    grad_bias = bias_view.array;
    problem.grad_bias = call.mask_operand_of(bias_view);
  }
  py::object grad_distances = py::none();
  if (wants(kDistances)) {
    const ArrayView table = new_zeros("gradient of distance_bias", result_type_of(Scalar::float64),
                                      call.options.distance_bias.shape);
    grad_distances = table.array;
    problem.grad_distance_bias = distance_operand_of(table, call.problem.batch, call.memory);
  }
  const auto numbers_of_rows = [&](Input input, const char* name, Operand& operand) -> py::object {
    if (!wants(input)) return py::none();
    const ArrayView numbers = new_array(name, result_type_of(call.problem.scalar), call.rows_shape);
    operand = call.numbers_of_rows(numbers);
    return numbers.array;
  };
  const py::object slope_terms = numbers_of_rows(kSlopes, "gradient of alibi_slopes", problem.slope_terms);
  const py::object deltas = numbers_of_rows(kSinks, "gradient of sinks", problem.deltas);
  call.problem.output = call.operand_of(output);
  call.problem.lse = call.numbers_of_rows(lse);
  problem.forward = call.problem;
  problem.grad_output = call.operand_of(grad_output);
  if (grad_lse.array) problem.grad_lse = call.numbers_of_rows(grad_lse);

  const int threads = call.threads();
  run_without_gil([&](const StopSignal& signal) { attention_gradients(problem, threads, signal); });

  const auto result_of = [&](Input input) { return gradients[input] ? gradients[input]->deliver() : py::object(py::none()); };
  const py::object query = result_of(kQuery), key = result_of(kKey), value = result_of(kValue);
  return py::make_tuple(query, key, value, grad_bias, slope_terms, deltas, grad_distances);
}

}  // namespace regard
