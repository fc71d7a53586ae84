#include <string>

#include "../dispatch/compute.hpp"
#include "attention_calls.hpp"
#include "gil.hpp"

namespace regard {
py::object tangents_of(AttentionCall& call, py::handle tangent_query, py::handle tangent_key,
                       py::handle tangent_value) {
  if (call.options.score_function && !call.options.score_function->function.derivative)
    throw py::value_error("derivatives need the derivative of score_function: ScoreFunction(function, derivative)");
  TangentProblem problem{};
  ArrayView tangents[3];
  const py::handle given[] = {tangent_query, tangent_key, tangent_value};
  const ArrayView* const inputs[] = {&call.query, &call.key, &call.value};
  const char* const names[] = {"tangent_query", "tangent_key", "tangent_value"};
  Operand* const operands[] = {&problem.tangent_query, &problem.tangent_key, &problem.tangent_value};
  for (int i = 0; i < 3; ++i)
    if (!given[i].is_none() && !take_view(tangents[i], names[i], given[i], Accepts::storage)) return not_implemented();
  for (int i = 0; i < 3; ++i) {
    if (!tangents[i].array) continue;
    check_shape(tangents[i], inputs[i]->shape, inputs[i]->name);  // so that it broadcasts like its input
    if (call.problem.scalar == Scalar::float32 && tangents[i].element == Element::float64)
      return not_implemented();  // Python rounds it
    *operands[i] = call.operand_of(tangents[i]);
  }
  const ArrayView output = new_array("output", call.type, call.output_shape);
  const ArrayView tangent_output = new_array("tangent_output", call.type, call.output_shape);
  call.problem.output = call.operand_of(output);
  problem.tangent_output = call.operand_of(tangent_output);
  ArrayView lse, tangent_lse;
  if (call.options.return_lse) {
    lse = new_array("lse", result_type_of(call.problem.scalar), call.rows_shape);
    tangent_lse = new_array("tangent_lse", result_type_of(call.problem.scalar), call.rows_shape);
    call.problem.lse = call.numbers_of_rows(lse);
    problem.tangent_lse = call.numbers_of_rows(tangent_lse);
  }
  problem.forward = call.problem;
  const int threads = call.threads();
  run_without_gil([&](const StopSignal& signal) { attention_tangent(problem, threads, signal); });
  if (call.options.return_lse)
    return py::make_tuple(output.array, tangent_output.array, lse.array, tangent_lse.array);
  return py::make_tuple(output.array, tangent_output.array);
}

}  // namespace regard
