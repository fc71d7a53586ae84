#include "options.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "arguments.hpp"
#include "gil.hpp"
#include "threading.hpp"

namespace regard {
namespace {

EntryNumbers entry_numbers_of(const char* name, py::handle object) {
  EntryNumbers numbers;
  if (PyLong_CheckExact(object.ptr())) {
    numbers.single = integer_of(name, object);
    return numbers;
  }
  numbers.each = copied_integers(name, object, "an integer or an array of integers");
  return numbers;
}

// None for "end".
std::optional<EntryNumbers> query_offset_of(py::handle object) {
  if (!PyUnicode_Check(object.ptr())) return entry_numbers_of("query_offset", object);
  if (text_of(object) != "end")
    throw py::value_error("query_offset must be an integer, an array of integers or 'end', got " +
                          std::string(py::repr(object)));
  return std::nullopt;
}

std::int64_t reach_of(const char* side, py::handle object) {
  if (object.is_none()) return kUnbounded;
  const std::string name = std::string("window's ") + side;
  const std::int64_t reach = integer_of(name.c_str(), object);
  if (reach < 0)
    throw py::value_error("window must have sides of None or at least 0, got " +
                          std::to_string(reach) + " on the " + side);
  return reach;
}

// Empty if the object is not a sequence or is an array without axes.
std::optional<py::tuple> elements_of(py::handle object) {
  if (!PySequence_Check(object.ptr()) || PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr())) return std::nullopt;
  try {
    return result_of_python([&] { return PySequence_Tuple(object.ptr()); });
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    return std::nullopt;
  }
}

void parse_window(py::handle window, Options& options) {
  const std::optional<py::tuple> pair = elements_of(window);
  if (!pair)
    throw py::type_error("window must be a pair (left, right) of integers or None, got " +
                         kind_of(window));
  if (pair->size() != 2)
    throw py::value_error("window must be a pair (left, right), got " + std::to_string(pair->size()) +
                          " numbers");
  options.window_left = reach_of("left", (*pair)[0]);
  options.window_right = reach_of("right", (*pair)[1]);
}

enum class Infinity { none, negative, positive };  // that numbers may be

// Real numbers that are finite or the allowed infinity.
ArrayView head_numbers_of(const char* name, py::handle object, Infinity infinity) {
  const ArrayView numbers = copied_numbers(name, object, Element::float64);
  for (const double number : Distinct<double>(numbers))
    if (!std::isfinite(number) && !(infinity == Infinity::negative && number < 0) &&
        !(infinity == Infinity::positive && number > 0))
      throw py::value_error(std::string(name) + " must be finite" +
                            (infinity == Infinity::negative   ? " or -inf"
                             : infinity == Infinity::positive ? " or inf"
                                                              : "") + ", got " +
                            text_of(py::float_(number)));
  return numbers;
}

// An array with a number for each head, or none for a single number.
std::optional<ArrayView> numbers_of_heads(const char* name, py::handle object, Infinity infinity) {
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return std::nullopt;
  const bool is_array = py::isinstance<py::array>(object) && py::reinterpret_borrow<py::array>(object).ndim() > 0;
  if (!is_array && !PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) return std::nullopt;
  return head_numbers_of(name, object, infinity);
}

void parse_scale(py::handle object, Options& options) {
  options.scales = numbers_of_heads("scale", object, Infinity::none);
  if (!options.scales) options.scale = finite_number_of("scale", object);
}

double softcap_of(py::handle object) {
  const double softcap = finite_number_of("softcap", object);
  if (softcap <= 0)
    throw py::value_error("softcap must be greater than 0, or None for no cap, got " +
                          text_of(object));
  return softcap;
}

void parse_softcap(py::handle object, Options& options) {
  options.softcaps = numbers_of_heads("softcap", object, Infinity::positive);
  if (!options.softcaps) {
    options.softcap = softcap_of(object);
    return;
  }
  for (const double number : Distinct<double>(*options.softcaps))
    if (number <= 0)
      throw py::value_error("softcap must be greater than 0, or inf for a head without a cap, got " +
                            text_of(py::float_(number)));
}

ScoreFunctionView score_function_of(py::handle object) {
  if (!has_attribute(object, "derivative_address"))
    throw py::type_error("score_function must be a regard.ScoreFunction, got " + kind_of(object) +
                         ": wrap a compiled function in one");
  const auto address = [&](const char* name) {
    return reinterpret_cast<void*>(object.attr(name).cast<std::uintptr_t>());
  };
  ScoreFunctionView view;
  view.object = py::reinterpret_borrow<py::object>(object);
  view.scalar = object.attr("dtype").attr("itemsize").cast<int>() == 8 ? Scalar::float64 : Scalar::float32;
  view.function = {address("address"), address("derivative_address"), address("user_data_address")};
  return view;
}

// Arrays of float32 and float64 are read in place; other types are copied.
ArrayView distance_bias_of(py::handle object) {
  const py::array given = as_array("distance_bias", object);
  ArrayView view;
  if (!take_view(view, "distance_bias", given, Accepts::floats)) {
    const bool is_narrow = given.itemsize() <= 2 || (given.dtype().kind() == 'f' && given.itemsize() == 4);
    view = copied_numbers("distance_bias", given, is_narrow ? Element::float32 : Element::float64);
  }
  if (view.axes() == 0 || view.size(1) % 2 == 0)
    throw py::value_error("distance_bias must have an odd number of columns, 2 n - 1 for distances of less than n, got shape " +
                          to_text(view.shape));
  return view;
}

double dropout_p_of(py::handle object) {
  const double p = number_of("dropout_p", object);
  if (!(p >= 0 && p < 1))
    throw py::value_error("dropout_p must be at least 0 and less than 1, got " + text_of(object));
  return p;
}

std::uint64_t dropout_seed_of(py::handle object) {
  const py::object index = index_of("dropout_seed", object);
  if (index < py::int_(0) || index > py::int_(UINT64_MAX))
    throw py::value_error("dropout_seed must be from 0 to 2**64 - 1, got " + text_of(index));
  return PyLong_AsUnsignedLongLong(index.ptr());
}

DropoutOrigin dropout_origin_of(py::handle object) {
  const auto refuse = [&](const std::string& what) {
    return "dropout_origin must be three integers (entry, head, position), got " + what;
  };
  const std::optional<py::tuple> given = elements_of(object);
  if (!given) throw py::type_error(refuse(kind_of(object)));
  if (given->size() != 3) throw py::value_error(refuse(std::to_string(given->size()) + " elements"));
  std::int64_t numbers[3];
  for (std::size_t i = 0; i < 3; ++i) {
    static constexpr const char* kNames[] = {"the entry of dropout_origin", "the head of dropout_origin",
                                             "the position of dropout_origin"};
    numbers[i] = integer_of(kNames[i], (*given)[i]);
    if (numbers[i] < 0)
      throw py::value_error(std::string(kNames[i]) + " must not be negative, got " + std::to_string(numbers[i]));
  }
  return {numbers[0], numbers[1], numbers[2]};
}

Precision precision_of(py::handle object) {
  if (!PyUnicode_Check(object.ptr()))
    throw py::type_error("precision must be None, 'int8' or 'bfloat16', got " + kind_of(object));
  if (text_of(object) == "int8") return Precision::int8;
  if (text_of(object) == "bfloat16") return Precision::bfloat16;
  throw py::value_error("precision must be None, 'int8' or 'bfloat16', got " + std::string(py::repr(object)));
}

struct Keyword {
  const char* name;
  bool may_be_none;  // None selects the default
  void (*parse)(py::handle value, Options& options);
};

constexpr Keyword kKeywords[] = {
    {"is_causal", false, [](py::handle v, Options& o) { o.is_causal = flag_of("is_causal", v); }},
    {"query_offset", false,
     [](py::handle v, Options& o) { o.query_offset = query_offset_of(v); }},
    {"window", true, parse_window},
    {"key_lengths", true,
     [](py::handle v, Options& o) { o.key_lengths = entry_numbers_of("key_lengths", v); }},
    {"left_padding", true,
     [](py::handle v, Options& o) { o.left_padding = entry_numbers_of("left_padding", v); }},
    {"scale", true, parse_scale},
    {"softcap", true, parse_softcap},
    {"score_function", true, [](py::handle v, Options& o) { o.score_function = score_function_of(v); }},
    {"alibi_slopes", true,
     [](py::handle v, Options& o) { o.alibi_slopes = head_numbers_of("alibi_slopes", v, Infinity::none); }},
    {"distance_bias", true, [](py::handle v, Options& o) { o.distance_bias = distance_bias_of(v); }},
    {"sinks", true, [](py::handle v, Options& o) { o.sinks = head_numbers_of("sinks", v, Infinity::negative); }},
    {"dropout_p", false, [](py::handle v, Options& o) { o.dropout_p = dropout_p_of(v); }},
    {"dropout_seed", true, [](py::handle v, Options& o) { o.dropout_seed = dropout_seed_of(v); }},
    {"dropout_origin", false, [](py::handle v, Options& o) { o.dropout_origin = dropout_origin_of(v); }},
    {"precision", true, [](py::handle v, Options& o) { o.precision = precision_of(v); }},
    {"return_weights", false,
     [](py::handle v, Options& o) { o.return_weights = flag_of("return_weights", v); }},
    {"return_lse", false, [](py::handle v, Options& o) { o.return_lse = flag_of("return_lse", v); }},
    {"_wide_lse", false, [](py::handle v, Options& o) { o.wide_lse = flag_of("_wide_lse", v); }},
    {"out", true, [](py::handle v, Options& o) { o.out = py::reinterpret_borrow<py::object>(v); }},
    {"threads", true, [](py::handle v, Options& o) { o.threads = thread_count_of(v); }},
};

// Python's interned objects for the names: a keyword is nearly always the same object and is
// compared by address.
PyObject* interned_names[std::size(kKeywords)];

const Keyword* find_keyword(PyObject* name) {
  for (std::size_t i = 0; i < std::size(kKeywords); ++i)
    if (interned_names[i] == name) return &kKeywords[i];
  for (const Keyword& keyword : kKeywords)
    if (PyUnicode_CompareWithASCIIString(name, keyword.name) == 0) return &keyword;
  return nullptr;
}

PerEntry per_entry(const char* name, const EntryNumbers& numbers, const AttentionProblem& problem,
                   const Shape& batch, const char* entries, std::int64_t lowest, std::int64_t highest,
                   Integers& memory) {
  const auto check = [&](std::int64_t number) {
    if (number < lowest || number > highest)
      throw py::value_error(std::string(name) + " must be from " + std::to_string(lowest) + " to " +
                            std::to_string(highest) + ", got " + std::to_string(number));
  };
  if (!numbers.each) {
    check(numbers.single);
    return {&numbers.single, nullptr};
  }
  const ArrayView& view = *numbers.each;
  if (!broadcasts_to(view.shape, batch)) {
    Shape column = batch;
    column.push_back(1);
    std::string first = "0";
    for (std::size_t axis = 0; axis < batch.size(); ++axis) first = ":, " + first;
    throw py::value_error(std::string(name) + " must be an integer or broadcast to the " + entries +
                          " " + to_text(batch) + ", got shape " + to_text(view.shape) +
                          (view.shape == column ? "; pass " + std::string(name) + "[" + first + "]" : ""));
  }
  for (const std::int64_t number : Distinct<std::int64_t>(view)) check(number);
  return {static_cast<const std::int64_t*>(view.data), batch_strides_of(view, 0, problem.batch, memory)};
}

enum class Heads { each, each_or_one };

// One number for every query head, or one for every head of every batch entry; or a scalar if there
// is one head. An axis with one number for all heads is accepted only if no gradient has its shape.
PerHead per_entry_and_head(const char* name, const ArrayView& view, Heads accepted, const AttentionProblem& problem,
                           const Shape& batch, Integers& memory) {
  const auto* numbers = static_cast<const double*>(view.data);
  const bool is_number = view.axes() == 0 && problem.heads == 1;
  if (is_number) return {numbers, 0, nullptr};
  const bool is_one = accepted == Heads::each_or_one && view.axes() > 0 && view.size(1) == 1;
  if (view.axes() == 0 || (view.size(1) != problem.heads && !is_one) ||
      !broadcasts_to(Shape(view.shape.begin(), view.shape.end() - 1), batch)) {
    Shape full = batch;
    full.push_back(problem.heads);
    throw py::value_error(std::string(name) + " must have one number for every query head, shape (" +
                          std::to_string(problem.heads) + ",)" +
                          (batch.empty() ? "" : ", or for each batch entry, shape " + to_text(full)) +
                          ", got shape " + to_text(view.shape));
  }
  return {numbers, view.size(1) == 1 ? 0 : view.stride(1), batch_strides_of(view, 1, problem.batch, memory)};
}

// A table for every head, for every head of every batch entry, or one for all heads.
void set_distance_bias(AttentionProblem& problem, const ArrayView& table, const Shape& batch, Integers& memory) {
  if (!table.array) return;
  const py::ssize_t heads = table.axes() > 1 ? table.size(2) : 1;
  const int inner = std::min(table.axes(), 2);
  if ((heads != 1 && heads != problem.heads) ||
      !broadcasts_to(Shape(table.shape.begin(), table.shape.end() - inner), batch)) {
    Shape full = batch;
    full.push_back(problem.heads);
    full.push_back(table.size(1));
    throw py::value_error("distance_bias must have one row for every query head, shape (" + std::to_string(problem.heads) +
                          ", 2 n - 1)" + (batch.empty() ? "" : ", or for each batch entry, shape " + to_text(full)) +
                          ", got shape " + to_text(table.shape));
  }
  problem.distance_bias = distance_operand_of(table, problem.batch, memory);
  problem.distances = (table.size(1) + 1) / 2;
}

void set_score_function(AttentionProblem& problem, const std::optional<ScoreFunctionView>& function) {
  if (!function) return;
  if (function->scalar != problem.scalar)
    throw py::type_error(std::string("score_function must be of the type that the call computes in, ") +
                         (problem.scalar == Scalar::float64 ? "float64" : "float32") + ", got a function of " +
                         (function->scalar == Scalar::float64 ? "float64" : "float32"));
  problem.score_function = &function->function;
}

void check_precision(const AttentionProblem& problem) {
  if (problem.precision == Precision::full) return;
  if (problem.scalar != Scalar::float32)
    throw py::value_error(
        std::string("precision ") + (problem.precision == Precision::int8 ? "'int8'" : "'bfloat16'") +
        " needs query, key and value of float32, float16 or bfloat16, got a result type of float64");
  if (problem.precision == Precision::int8 && problem.head_dim > kMostInt8Dim)
    throw py::value_error("precision 'int8' needs a head_dim of at most " +
                          std::to_string(kMostInt8Dim) + ", got " + std::to_string(problem.head_dim));
}

}  // namespace

Operand distance_operand_of(const ArrayView& table, const BatchShape& batch, Integers& memory) {
  const int inner = std::min(table.axes(), 2);
  Operand operand;
  operand.data = table.data;
  operand.element = table.element;
  operand.column_stride = table.stride(1);
  operand.head_stride = table.axes() > 1 && table.size(2) != 1 ? table.stride(2) : 0;
  operand.batch_strides = batch_strides_of(table, inner, batch, memory);
  return operand;
}

void intern_keywords() {
  for (std::size_t i = 0; i < std::size(kKeywords); ++i)
    interned_names[i] = PyUnicode_InternFromString(kKeywords[i].name);
}

bool parse_options(py::handle keywords, Options& options) {
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(keywords.ptr(), &position, &name, &value)) {
    const Keyword* const keyword = find_keyword(name);
    if (!keyword) return false;
    if (!keyword->may_be_none || value != Py_None) keyword->parse(value, options);
  }
  if (options.dropout_p > 0 && !options.dropout_seed)
    throw py::type_error(
        "dropout_p needs dropout_seed, an integer: it determines which weights are dropped, and the gradients must drop "
        "the same ones");
  return true;
}

void set_options(AttentionProblem& problem, const Options& options, const Shape& batch,
                 const char* entries, Integers& memory) {
  problem.scale = options.scale ? *options.scale : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  problem.softcap = options.softcap;
  if (options.scales) problem.scales = per_entry_and_head("scale", *options.scales, Heads::each_or_one, problem, batch, memory);
  if (options.softcaps) problem.softcaps = per_entry_and_head("softcap", *options.softcaps, Heads::each_or_one, problem, batch, memory);
  set_score_function(problem, options.score_function);
  set_distance_bias(problem, options.distance_bias, batch, memory);
  problem.dropout_origin = options.dropout_origin;
  if (options.dropout_p > 0) {
    // A random word w keeps its weight if w >= p 2^32, which is w > ceil(p 2^32) - 1.
    problem.dropout_factor = 1 / (1 - options.dropout_p);
    problem.dropout_limit = static_cast<std::uint32_t>(std::ceil(std::ldexp(options.dropout_p, 32)) - 1);
    problem.dropout_seed = *options.dropout_seed;
  }
  problem.precision = options.precision;
  check_precision(problem);
  problem.window_left = options.window_left;
  problem.window_right = options.is_causal ? 0 : options.window_right;
  if (options.query_offset)
    problem.query_offset = per_entry("query_offset", *options.query_offset, problem, batch, entries,
                                     INT64_MIN, INT64_MAX, memory);
  if (options.key_lengths)
    problem.key_lengths = per_entry("key_lengths", *options.key_lengths, problem, batch, entries, 0,
                                    problem.kv_len, memory);
  if (options.left_padding)
    problem.left_padding = per_entry("left_padding", *options.left_padding, problem, batch, entries, 0,
                                     problem.kv_len, memory);
  if (options.alibi_slopes)
    problem.alibi_slopes =
        per_entry_and_head("alibi_slopes", *options.alibi_slopes, Heads::each, problem, batch, memory);
  if (options.sinks) {
    const PerHead sinks = per_entry_and_head("sinks", *options.sinks, Heads::each, problem, {}, memory);
    problem.sinks = sinks.data;
    problem.sinks_stride = sinks.head_stride;
  }
}

}  // namespace regard
