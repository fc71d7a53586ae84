// Rows that a cache keeps.
#include "../dispatch/convert_rows.hpp"
#include "../dispatch/threads/count.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "gil.hpp"

namespace regard {
namespace {

bool is_narrowed(Element element) {
  return element == Element::float16 || element == Element::bfloat16 || element == Element::float32;
}

// Whether elements of the last axis lie side by side.
bool has_rows(const ArrayView& view) {
  return view.axes() > 0 && (view.stride(1) == 1 || view.size(1) == 1);
}

// Rows that lie side by side in both arrays become one.
void collapse_rows(ConvertProblem& problem) {
  BatchShape& rows = problem.rows;
  while (rows.axes > 0) {
    const int last = rows.axes - 1;
    const bool continues = problem.from.batch_strides[last] == problem.columns &&
                           problem.to.batch_strides[last] == problem.columns;
    if (!continues && rows.sizes[last] != 1) return;
    problem.columns *= rows.sizes[last];
    rows.count /= rows.sizes[last];
    --rows.axes;
  }
}

}  // namespace

bool convert_rows(py::handle source, py::handle target) {
  ArrayView from, to;
  if (!take_view(from, "source", source, Accepts::cache) ||
      !take_view(to, "target", target, Accepts::cache))
    return false;
  const bool rounds = is_narrowed(from.element) && is_narrowed(to.element);
  if ((from.element != to.element && !rounds) || from.shape != to.shape || !has_rows(from) ||
      !has_rows(to) || !py::reinterpret_borrow<py::array>(target).writeable())
    return false;
  Integers memory;
  ConvertProblem problem{};
  problem.columns = to.size(1);
  problem.rows = batch_of(Shape(to.shape.begin(), to.shape.end() - 1), memory);
  problem.from = rows_of(from, 1, problem.rows, memory);
  problem.to = rows_of(to, 1, problem.rows, memory);
  if (problem.rows.count > 0) collapse_rows(problem);
  const int threads = default_thread_count();
  bool overflows = false;
  run_work(static_cast<double>(problem.rows.count) * static_cast<double>(problem.columns),
           [&](const StopSignal&) { overflows = convert_rows(problem, threads); });
  return !overflows;
}

}  // namespace regard
