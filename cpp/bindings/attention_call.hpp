// What the attention calls share, however their arrays are laid out: from arrays to a problem, and from a problem
// to results.
#pragma once

#include "../dispatch/attention/plan.hpp"
#include "arrays.hpp"
#include "options.hpp"
#include "result.hpp"
#include "sparse_mask.hpp"

namespace regard {

// Where heads and rows are in the arrays, counted from the end of weights, and the names that messages use.
struct Layout {
  int heads_axis;
  int rows_axis;
  const char* entries;       // the batch axes
  const char* mask_meaning;  // the axes of a mask
};

// A problem whose arrays, options and results stay alive with it.
struct AttentionCall {
  explicit AttentionCall(const Layout& layout) : layout(layout) {}
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  // Takes options, then views of the arrays. `stored` is what keys and values may be. Returns false where the
  // kernels cannot read an array as it is, or there is no such option: Python then converts, or explains.
  bool take(py::handle query, py::handle key, py::handle value, py::handle mask, py::handle keywords,
            Accepts stored = Accepts::storage);

  // Sets the problem's heads and dims; the layout has checked them, and sets the rest.
  void set_sizes(py::ssize_t heads, py::ssize_t kv_heads, py::ssize_t q_len, py::ssize_t kv_len);

  // Shapes of the results: `rows` is that of lse.
  void set_result_shapes(const Shape& rows);

  // Hands options, mask and query to the problem; its sizes and batch are set.
  void set_query(const Shape& batch);
  void set_keys_and_values();

  // Allocates the results, or takes `out`; computes; and returns output, or a tuple of it with the extra results.
  py::object run();

  // What `run` would do, as a dictionary: Python's _Plan.
  py::object explain();

  // Of a prepared call whose arrays are checked and not read: its batch axes, sizes and result type, and whether
  // results have a heads axis.
  py::tuple checked(const Shape& batch) const;

  // The number of batch entries, then the sizes.
  py::tuple sizes() const;

  int threads() const;
  Operand operand_of(const ArrayView& view);
  // As that of any array, but with rows that may be broadcast, and an error of its own.
  Operand mask_operand_of(const ArrayView& view);
  // Hands the sparse mask to the problem, or throws ValueError.
  void set_sparse_mask();
  // Of an array of one number a row, (..., rows).
  Operand numbers_of_rows(ArrayView view);

  const Layout& layout;
  Options options;
  ArrayView query, key, value, mask, bias;
  SparseMaskView sparse_mask;
  AttentionProblem problem{};
  Integers memory;
  ResultType type{};
  Shape batch_shape;  // of the arrays' batch axes: none where sequences are packed
  Shape output_shape, weights_shape, rows_shape;

 private:
  bool take_mask(py::handle object);

  SparseMask sparse_mask_data_{};
};

}  // namespace regard
