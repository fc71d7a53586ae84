#include "sparse_mask.hpp"

#include <cstdint>
#include <string>

#include "gil.hpp"

namespace regard {
namespace {

// Python's SparseRows, in the order of its fields.
enum Field { kStarts, kSpans, kBits, kRowQueries, kFirstQuery, kFirstKey, kShape, kFields };

// An array whose elements have the size of `element`.
template <class Number>
ArrayView checked(const char* name, py::handle object, py::ssize_t axes, Element element) {
  if (!py::isinstance<py::array_t<Number>>(object)) throw py::type_error(std::string("mask has no array of ") + name);
  const auto array = py::reinterpret_borrow<py::array>(object);
  if (array.ndim() != axes && axes > 0) throw py::value_error(std::string("mask has a wrong array of ") + name);
  return view_as("mask", array, element);
}

}  // namespace

bool SparseMaskView::take(py::handle object) {
  if (py::isinstance<py::array>(object) || !has_attribute(object, "_sparse_rows")) return false;
  const py::tuple fields = call_python(object.attr("_sparse_rows"));
  if (fields.size() != kFields) throw py::type_error("mask has wrong arrays");
  const ArrayView rows = checked<std::int64_t>("starts", fields[kStarts], 0, Element::float64);
  spans = checked<std::int64_t>("spans", fields[kSpans], 2, Element::float64);
  bits = checked<std::uint8_t>("bits", fields[kBits], 3, Element::boolean);
  static_assert(sizeof(MaskSpan) == 3 * sizeof(std::int64_t), "a span is a row of the array");
  const auto is_contiguous = [](const ArrayView& view) {
    return (py::reinterpret_borrow<py::array>(view.array).flags() & py::array::c_style) != 0;
  };
  if (!is_contiguous(spans) || !is_contiguous(bits) || spans.shape[1] != 3 || rows.axes() < 1 ||
      (rows.size(1) > 1 && rows.stride(1) != 1))
    throw py::value_error("mask has arrays of a wrong layout");
  const std::int64_t row_queries = fields[kRowQueries].cast<std::int64_t>();
  const std::int64_t first_query = fields[kFirstQuery].cast<std::int64_t>();
  for (const py::handle size : py::tuple(fields[kShape])) shape_.push_back(size.cast<py::ssize_t>());
  if (row_queries < 1 || first_query < 0 || shape_.size() < 2)
    throw py::value_error("mask has rows of no queries, or no axis of queries");
  const std::int64_t q_len = shape_.end()[-2];
  if (q_len > 0 && (first_query + q_len - 1) / row_queries >= rows.size(1) - 1)
    throw py::value_error("mask has too few rows");
  mask_.spans = static_cast<const MaskSpan*>(spans.data);
  mask_.bits = static_cast<const unsigned char*>(bits.data);
  mask_.bytes_of_query = bits.shape[2];
  mask_.row_queries = row_queries;
  mask_.first_query = first_query;
  mask_.first_key = fields[kFirstKey].cast<std::int64_t>();
  mask_.kv_len = shape_.end()[-1];
  // Ranges and windows have one or two spans in a row, and an index that selects keys has many.
  std::int64_t all_rows = rows.size(1) - 1;
  for (int axis = 2; axis <= rows.axes(); ++axis)
    if (rows.stride(axis) != 0) all_rows *= rows.size(axis);
  mask_.is_scattered = (row_queries == 1 || q_len == 1) && spans.size(2) >= 8 * all_rows;
  starts = rows;
  return true;
}

}  // namespace regard
