#include "sparse_mask.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

namespace regard {
namespace {

// Python's SparseRows, in the order of its fields.
enum Field { kStarts, kSpans, kBits, kRowQueries, kFirstQuery, kFirstKey, kShape, kFields };

template <class Number>
py::array checked(const char* name, py::handle object, py::ssize_t axes) {
  if (!py::isinstance<py::array_t<Number>>(object)) throw py::type_error(std::string("mask has no array of ") + name);
  const auto array = py::reinterpret_borrow<py::array>(object);
  if (array.ndim() != axes && axes > 0) throw py::value_error(std::string("mask has a wrong array of ") + name);
  return array;
}

}  // namespace

bool SparseMaskView::take(py::handle object) {
  if (py::isinstance<py::array>(object) || !py::hasattr(object, "_sparse_rows")) return false;
  const py::tuple fields = object.attr("_sparse_rows")();
  if (fields.size() != kFields) throw py::type_error("mask has wrong arrays");
  const py::array starts = checked<std::int64_t>("starts", fields[kStarts], 0);
  const py::array spans = checked<std::int64_t>("spans", fields[kSpans], 2);
  const py::array bits = checked<std::uint8_t>("bits", fields[kBits], 3);
  static_assert(sizeof(MaskSpan) == 3 * sizeof(std::int64_t), "a span is a row of the array");
  const bool is_packed = (spans.flags() & bits.flags() & py::array::c_style) != 0;
  const py::ssize_t axes = starts.ndim();
  if (!is_packed || spans.shape(1) != 3 || axes < 1 ||
      (starts.shape(axes - 1) > 1 && starts.strides(axes - 1) != sizeof(std::int64_t)))
    throw py::value_error("mask has arrays of a wrong layout");
  const std::int64_t row_queries = fields[kRowQueries].cast<std::int64_t>();
  const py::tuple sizes(fields[kShape]);
  const auto q_len = sizes.size() >= 2 ? sizes[sizes.size() - 2].cast<std::int64_t>() : 0;
  const std::int64_t last_row = (fields[kFirstQuery].cast<std::int64_t>() + std::max<std::int64_t>(q_len, 1) - 1) / row_queries;
  if (q_len > 0 && last_row >= starts.shape(axes - 1) - 1) throw py::value_error("mask has too few rows");
  starts_ = starts;
  spans_ = spans;
  bits_ = bits;
  for (const py::handle size : py::tuple(fields[kShape])) shape_.push_back(size.cast<py::ssize_t>());
  mask_.spans = static_cast<const MaskSpan*>(spans.data());
  mask_.bits = static_cast<const unsigned char*>(bits.data());
  mask_.bytes_of_query = bits.shape(2);
  mask_.row_queries = row_queries;
  mask_.first_query = fields[kFirstQuery].cast<std::int64_t>();
  mask_.first_key = fields[kFirstKey].cast<std::int64_t>();
  mask_.kv_len = shape_.end()[-1];
  return true;
}

ArrayView SparseMaskView::starts() const {
  return view_as("mask", py::reinterpret_borrow<py::array>(starts_), Element::float64);
}

}  // namespace regard
