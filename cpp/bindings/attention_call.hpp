// The common part of the attention calls, for any array layout: from arrays to a problem, and from
// a problem to results.
#pragma once

#include "../dispatch/attention/plan.hpp"
#include "arrays.hpp"
#include "options.hpp"
#include "result.hpp"
#include "sparse_mask.hpp"

namespace regard {

// The axes of heads and rows in the arrays, counted from the end of the weights, and the names used
// in messages.
struct Layout {
  int heads_axis;
  int rows_axis;
  const char* entries;       // the batch axes
  const char* mask_meaning;  // the axes of a mask
};

// Throws ValueError unless the array has the shape of what `meaning` names.
void check_shape(const ArrayView& view, const Shape& shape, const char* meaning);

// A problem that keeps its arrays, options and results alive.
struct AttentionCall {
  explicit AttentionCall(const Layout& layout) : layout(layout) {}
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  // Reads options, then takes views of the arrays. `stored` specifies the types of keys and values.
  // Returns false if the kernels cannot read an array as it is, or if an option does not exist:
  // Python then converts the array or raises an error.
  bool take(py::handle query, py::handle key, py::handle value, py::handle mask, py::handle keywords,
            Accepts stored = Accepts::storage);

  // Sets the problem's heads and dims, which the layout has checked; the layout sets the rest.
  void set_sizes(py::ssize_t heads, py::ssize_t kv_heads, py::ssize_t q_len, py::ssize_t kv_len);

  // Sets the problem's batch axes, after the sizes. Throws ValueError if the rows of all entries and
  // heads are more than 64 bits can count, as they may be if arrays are broadcast.
  void set_batch(const Shape& batch);

  // Sets the shapes of the results; `rows` is the shape of lse.
  void set_result_shapes(const Shape& rows);

  // Passes options, mask and query to the problem, whose sizes and batch must be set.
  void set_query(const Shape& batch);
  void set_keys_and_values();

  // Allocates the results or uses `out`, computes, and returns the output, or a tuple of the output
  // and the extra results.
  py::object run();

  // Describes what `run` would do, as a dictionary: Python's _Plan.
  py::object explain();

  // For a prepared call whose arrays are checked but not read: its batch axes, sizes and result
  // type, and whether results have a heads axis.
  py::tuple checked() const;

  // The number of batch entries, followed by the sizes.
  py::tuple sizes() const;

  // Takes a view of an array that the kernels read, and keeps it, by reference, for forbid_overlap.
  bool take_input(ArrayView& view, const char* name, py::handle object, Accepts accepts);
  void keep_input(const ArrayView& view) { inputs_.push_back(&view); }
  // Throws ValueError if a result would be written over anything that the kernels read.
  void forbid_overlap(const Result& result) const;

  int threads() const;
  Operand operand_of(const ArrayView& view);
  // Like operand_of, but rows may be broadcast, and the error differs.
  Operand mask_operand_of(const ArrayView& view);
  // Passes the sparse mask to the problem, or throws ValueError.
  void set_sparse_mask();
  // The operand of an array with one number per row, (..., rows).
  Operand numbers_of_rows(ArrayView view);

  const Layout& layout;
  Options options;
  ArrayView query, key, value, mask, bias;
  SparseMaskView sparse_mask;
  AttentionProblem problem{};
  Integers memory;
  ResultType type{};
  Shape batch_shape;  // of the arrays' batch axes: none if sequences are packed
  Shape output_shape, weights_shape, rows_shape;

 private:
  bool take_mask(py::handle object);
  bool take_sparse_mask(py::handle object);

  FixedVector<const ArrayView*, 16> inputs_;
  SparseMask sparse_mask_data_{};
};

}  // namespace regard
