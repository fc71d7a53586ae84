// Rows that a cache keeps.
#include "../dispatch/convert_rows.hpp"
#include "../dispatch/threads/count.hpp"
#include "arguments.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

bool is_narrowed(Element element) {
  return element == Element::float16 || element == Element::bfloat16 || element == Element::float32;
}

// Elements of the last axis lie side by side.
bool has_rows(const ArrayView& view) {
  return view.axes() > 0 && (view.stride(1) == 1 || view.size(1) == 1);
}

// Rows that lie side by side in both arrays become one.
void join_rows(ConvertProblem& problem) {
  BatchShape& rows = problem.rows;
  while (rows.axes > 0) {
    const int last = rows.axes - 1;
    const bool goes_on = problem.from.batch_strides[last] == problem.columns &&
                         problem.to.batch_strides[last] == problem.columns;
    if (!goes_on && rows.sizes[last] != 1) return;
    problem.columns *= rows.sizes[last];
    rows.count /= rows.sizes[last];
    --rows.axes;
  }
}

}  // namespace

bool convert_rows(py::handle source, py::handle target) {
  if (!is_native(source, Accepts::cache) || !is_native(target, Accepts::cache)) return false;
  const ArrayView from = view_of("source", source, Accepts::cache);
  const ArrayView to = view_of("target", target, Accepts::cache);
  const bool rounds = is_narrowed(from.element) && is_narrowed(to.element);
  if ((from.element != to.element && !rounds) || from.shape != to.shape || !has_rows(from) ||
      !has_rows(to) || !to.array.writeable())
    return false;
  ConvertProblem problem;
  problem.columns = to.size(1);
  problem.rows = batch_of(Shape(to.shape.begin(), to.shape.end() - 1));
  set_rows(problem.from, from, 1, problem.rows);
  set_rows(problem.to, to, 1, problem.rows);
  if (problem.rows.count > 0) join_rows(problem);
  const int threads = default_thread_count();
  bool overflows = false;
  run_without_gil([&](const StopSignal&) { overflows = convert_rows(problem, threads); });
  return !overflows;
}

}  // namespace regard
