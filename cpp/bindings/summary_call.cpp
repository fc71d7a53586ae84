#include <string>

#include "../dispatch/compute.hpp"
#include "arguments.hpp"
#include "attention_calls.hpp"
#include "gil.hpp"

namespace regard {
namespace {

constexpr const char* kStatisticNames[kRowStatistics] = {
    "entropy", "max", "effective_count", "mean_distance", "first_mass", "local_mass", "previous_token", "induction"};

// The results after the row statistics.
enum Wanted { kTop = kRowStatistics, kColumnSums, kColumnMeans, kWantedCount };

// 64-bit integers, viewed as elements of the same size.
ArrayView integers_of(const char* name, const py::array& array) { return view_as(name, array, Element::float64); }

using Compute = void (*)(const SummaryProblem& problem, int threads, const StopSignal& signal, RowsDone& rows);

// Calls `progress`, unless it is None, about as often as signals are checked, and at the end.
void compute(Compute compute, const SummaryProblem& problem, std::int64_t all_rows, int threads, py::handle progress) {
  RowsDone rows{all_rows};
  struct Context {
    GilReleased* gil;
    py::handle progress;
    RowsDone& rows;
    bool raises() { return !progress.is_none() && gil->raises(progress, rows.done.load(), rows.all); }
  };
  try {
    GilReleased released;
    Context context{&released, progress, rows};
    const StopSignal signal{[](void* state) {
                              auto& context = *static_cast<Context*>(state);
                              return context.gil->handlers_raise() || context.raises();
                            },
                            &context};
    compute(problem, threads, signal, rows);
    if (context.raises()) throw Stopped{};
  } catch (const Stopped&) {
    throw py::error_already_set();
  }
}

bool take_lse(AttentionCall& call, py::handle object) {
  ArrayView lse;
  if (!take_view(lse, "lse", object, Accepts::floats)) return false;
  check_shape(lse, call.rows_shape, "the forward call's lse");
  call.problem.lse = call.numbers_of_rows(lse);
  return true;
}

}  // namespace

py::object summary_of(AttentionCall& call, py::handle lse, py::handle wanted_object, py::handle first_keys,
                      py::handle local_reach, py::handle top_count, py::handle induction, py::handle progress) {
  if (!take_lse(call, lse)) return not_implemented();
  SummaryProblem problem{};
  problem.first_keys = integer_of("first_keys", first_keys);
  problem.local_reach = integer_of("local_reach", local_reach);
  problem.top_count = integer_of("top_k", top_count);

  const py::tuple wanted = py::reinterpret_borrow<py::tuple>(wanted_object);
  const auto wants = [&](int result) { return wanted[static_cast<std::size_t>(result)].cast<bool>(); };
  const ResultType type = result_type_of(call.problem.scalar);
  py::tuple results(kWantedCount + 1);
  for (std::size_t i = 0; i < results.size(); ++i) results[i] = py::none();
  for (int i = 0; i < kRowStatistics; ++i) {
    if (!wants(i)) continue;
    const ArrayView numbers = new_array(kStatisticNames[i], type, call.rows_shape);
    problem.statistics[i] = call.numbers_of_rows(numbers);
    results[static_cast<std::size_t>(i)] = numbers.array;
  }
  ArrayView induction_keys;
  if (wants(kInduced)) {
    induction_keys =
        integers_of("induction_keys", py::array(py::reinterpret_borrow<py::object>(induction)));
    problem.induction_keys = call.numbers_of_rows(induction_keys);
  }
  if (wants(kTop)) {
    Shape shape = call.rows_shape;
    shape.push_back(as_axis(problem.top_count));
    const ArrayView weights = new_array("top_k", type, shape);
    results[kTop] = weights.array;
    problem.top_weights = call.operand_of(weights);
    const py::array keys = py::array(py::dtype::of<std::int64_t>(), shape);
    results[kWantedCount] = keys;
    problem.top_keys = call.operand_of(integers_of("top_k", keys));
  }
  Shape keys_shape = call.rows_shape;  // with keys instead of rows
  const int rows_axis = call.layout.rows_axis;
  keys_shape[keys_shape.size() - static_cast<std::size_t>(rows_axis - 1)] = call.key.size(rows_axis);
  const auto columns = [&](Wanted result, const char* name, Operand& operand) {
    if (!wants(result)) return;
    const ArrayView numbers = new_array(name, type, keys_shape);
    operand = call.numbers_of_rows(numbers);
    results[result] = numbers.array;
  };
  columns(kColumnSums, "column_sums", problem.column_sums);
  columns(kColumnMeans, "column_means", problem.column_means);
  problem.forward = call.problem;
  compute(summarize_attention, problem, rows_of_all_heads(problem), call.threads(), progress);
  return results;
}

py::object map_of(AttentionCall& call, py::handle lse, py::handle extent_object, py::handle pooling,
                  py::handle progress) {
  if (!take_lse(call, lse)) return not_implemented();
  SummaryProblem problem{};
  AttentionMap& map = problem.map;
  const py::tuple extent = py::reinterpret_borrow<py::tuple>(extent_object);
  std::int64_t* const numbers[] = {&map.height, &map.width, &map.row_begin, &map.row_end, &map.key_begin, &map.key_end};
  for (std::size_t i = 0; i < std::size(numbers); ++i) *numbers[i] = integer_of("extent", extent[i]);
  map.pooling = static_cast<Pooling>(integer_of("pooling", pooling));
  Shape shape = call.rows_shape;
  shape[shape.size() - 1] = as_axis(map.height);
  shape.push_back(as_axis(map.width));
  const ArrayView pixels = new_array("map", result_type_of(call.problem.scalar), shape);
  map.pixels = call.operand_of(pixels);
  problem.forward = call.problem;
  const std::int64_t rows = call.problem.batch.count * call.problem.heads * (map.row_end - map.row_begin);
  compute(map_attention, problem, rows, call.threads(), progress);
  return pixels.array;
}

}  // namespace regard
