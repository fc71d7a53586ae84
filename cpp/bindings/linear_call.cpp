// linear_attention.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "../dispatch/compute.hpp"
#include "arguments.hpp"
#include "attention_call.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "result.hpp"
#include "starts.hpp"
#include "threading.hpp"

namespace regard {
namespace {

// The axes of heads and tokens, counted from the end of queries, keys and values.
struct TokenLayout {
  std::size_t heads;
  std::size_t tokens;
};
constexpr TokenLayout kDenseTokens{3, 2}, kPackedTokens{2, 3}, kStateRows{3, 2};

py::ssize_t size_at(const ArrayView& view, std::size_t axis) {
  return view.shape.size() < axis ? 1 : view.size(static_cast<int>(axis));
}

py::value_error differ(const char* what, const ArrayView& a, const ArrayView& b, std::size_t axis) {
  return py::value_error(std::string(what) + ", got " + std::to_string(size_at(a, axis)) + " and " +
                         std::to_string(size_at(b, axis)) + " (shapes " + to_text(a.shape) + " and " +
                         to_text(b.shape) + ")");
}

class LinearCall {
 public:
  bool take(py::handle query, py::handle key, py::handle value, py::handle decay, py::handle beta,
            py::handle state) {
    const auto take_one = [](ArrayView& view, const char* name, py::handle object) {
      return object.is_none() || take_view(view, name, object, Accepts::storage);
    };
    if (!take_view(query_, "query", query, Accepts::storage) ||
        !take_view(key_, "key", key, Accepts::storage) ||
        !take_view(value_, "value", value, Accepts::storage) || !take_one(decay_, "decay", decay) ||
        !take_one(beta_, "beta", beta) || !take_one(state_, "state", state))
      return false;
    type_ = result_type_of({&query_, &key_, &value_});
    problem_.scalar = scalar_of(type_.element);
    // Python rounds arrays that are wider than the arithmetic.
    for (const ArrayView* view : {&decay_, &beta_, &state_})
      if (view->array && is_wider(*view)) return false;
    return true;
  }

  void check(const Starts* starts) {
    layout_ = starts ? kPackedTokens : kDenseTokens;
    check_shapes(starts != nullptr);
    if (starts) check_starts("starts", *starts, query_);
    problem_.heads = size_at(query_, layout_.heads);
    problem_.kv_heads = size_at(key_, layout_.heads);
    problem_.q_len = starts ? longest(*starts) : query_.size(2);
    problem_.head_dim = query_.size(1);
    problem_.value_dim = value_.size(1);
    problem_.starts = starts ? starts->data() : nullptr;

    Shape batch, rows;
    if (starts) {
      batch = {static_cast<py::ssize_t>(starts->size()) - 1};
      rows = {query_.size(3), problem_.kv_heads};
    } else {
      rows = batch = broadcast_outer({&query_, &key_, &value_}, 3, "batch axes (those before heads)");
      if (has_heads()) rows.push_back(problem_.kv_heads);
      rows.push_back(problem_.q_len);
    }
    problem_.batch = batch_of(batch, memory_);
    output_shape_ = rows;
    if (has_heads()) output_shape_[output_shape_.size() - (starts ? 1 : 2)] = problem_.heads;
    output_shape_.push_back(problem_.value_dim);
    state_shape_ = batch;
    if (has_heads()) state_shape_.push_back(problem_.kv_heads);
    state_shape_.push_back(problem_.head_dim);
    state_shape_.push_back(problem_.value_dim);

    problem_.query = operand_of(query_, layout_);
    problem_.key = operand_of(key_, layout_);
    problem_.value = operand_of(value_, layout_);
    if (decay_.array) set_decay(rows);
    if (beta_.array) problem_.beta = operand_of_rows(beta_, rows);
    if (state_.array) {
      if (!broadcasts_to(state_.shape, state_shape_))
        throw py::value_error("state must broadcast to " + to_text(state_shape_) + ", that is, " +
                              (starts ? "(texts, " : "(..., ") +
                              "kv_heads, head_dim, value_dim), got shape " + to_text(state_.shape));
      problem_.state = operand_of(state_, kStateRows);
    }
  }

  py::object run(std::optional<double> scale, bool return_state, py::handle out, int threads) {
    problem_.scale = scale_or_default(scale);
    const bool is_pair = PyTuple_CheckExact(out.ptr());
    const auto given = [&](std::size_t index) -> py::object {
      if (is_pair) return py::reinterpret_borrow<py::tuple>(out)[index];
      return index == 0 ? py::reinterpret_borrow<py::object>(out) : py::none();
    };
    const Result output(given(0), type_, output_shape_, nullptr, is_pair ? "out[0]" : "out");
    for (const ArrayView* input : {&query_, &key_, &value_, &decay_, &beta_, &state_})
      if (input->array) output.forbid_overlap(*input, false);
    problem_.output = operand_of(output.view, layout_);
    std::optional<Result> state;
    if (return_state) {
      state.emplace(given(1), result_type_of(problem_.scalar), state_shape_, nullptr, "out[1]");
      for (const ArrayView* input : {&query_, &key_, &value_, &decay_, &beta_, &state_})
        if (input->array) state->forbid_overlap(*input, input == &state_);
      state->forbid_overlap(output);
      problem_.new_state = operand_of(state->view, kStateRows);
    }
    run_work(work_of(problem_),
             [&](const StopSignal& signal) { attend_linearly(problem_, threads, signal); });
    const py::object result = output.deliver();
    if (!return_state) return result;
    return py::make_tuple(result, state->deliver());
  }

  py::object gradients(std::optional<double> scale, py::handle grad_output_object,
                       py::handle grad_state_object, int threads) {
    problem_.scale = scale_or_default(scale);
    LinearBackwardProblem problem{};
    ArrayView grad_output, grad_state;
    if (!take_view(grad_output, "grad_output", grad_output_object, Accepts::storage) || is_wider(grad_output))
      return not_implemented();
    if (!grad_state_object.is_none() &&
        (!take_view(grad_state, "grad_state", grad_state_object, Accepts::storage) || is_wider(grad_state)))
      return not_implemented();
    check_shape(grad_output, output_shape_, "output");
    problem.grad_output = operand_of(grad_output, layout_);
    if (grad_state.array) {
      check_shape(grad_state, state_shape_, "the new state");
      problem.grad_new_state = operand_of(grad_state, kStateRows);
    }
    py::list results;
    const auto add = [&](const ArrayView& input, const char* name, const Shape& shape) {
      if (!input.array) {
        results.append(py::none());
        return ArrayView();
      }
      const ArrayView view = new_array(name, result_type_of(problem_.scalar), shape);
      results.append(py::make_tuple(view.array, input.array));
      return view;
    };
    const auto with_columns = [](Shape shape, py::ssize_t columns) {
      shape.push_back(columns);
      return shape;
    };
    Shape queries = output_shape_;
    queries.pop_back();
    Shape rows = queries;
    if (has_heads()) rows[rows.size() + 1 - layout_.heads] = problem_.kv_heads;
    const bool has_columns = decay_.shape.size() > rows.size();
    const py::ssize_t columns = problem_.decays_by_column ? problem_.head_dim : 1;
    problem.grad_query =
        operand_of(add(query_, "gradient of query", with_columns(queries, problem_.head_dim)), layout_);
    problem.grad_key =
        operand_of(add(key_, "gradient of key", with_columns(rows, problem_.head_dim)), layout_);
    problem.grad_value =
        operand_of(add(value_, "gradient of value", with_columns(rows, problem_.value_dim)), layout_);
    const ArrayView decay =
        add(decay_, "gradient of decay", has_columns ? with_columns(rows, columns) : rows);
    if (decay.array)
      problem.grad_decay = has_columns ? operand_of(decay, layout_) : operand_of_rows(decay, rows);
    const ArrayView beta = add(beta_, "gradient of beta", rows);
    if (beta.array) problem.grad_beta = operand_of_rows(beta, rows);
    const ArrayView state = add(state_, "gradient of state", state_shape_);
    if (state.array) problem.grad_state = operand_of(state, kStateRows);
    problem.forward = problem_;
    run_work(kBackwardWork * work_of(problem_),
             [&](const StopSignal& signal) { linear_gradients(problem, threads, signal); });
    return py::tuple(results);
  }

 private:
  double scale_or_default(std::optional<double> scale) const {
    return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(problem_.head_dim));
  }

  bool is_wider(const ArrayView& view) const {
    return view.element == Element::float64 && problem_.scalar == Scalar::float32;
  }

  bool has_heads() const { return std::max({query_.axes(), key_.axes(), value_.axes()}) > 2; }

  void check_shapes(bool is_packed) const {
    for (const ArrayView* view : {&query_, &key_, &value_}) {
      if (is_packed ? view->axes() == 3 : view->axes() >= 2) continue;
      throw py::value_error(
          std::string(view->name) + " must have " +
          (is_packed ? "3 dimensions, (total, heads, dim)" : "at least 2 dimensions, (length, dim)") +
          ", got shape " + to_text(view->shape));
    }
    if (query_.size(1) != key_.size(1)) throw differ("query and key must share head_dim", query_, key_, 1);
    if (query_.size(1) == 0)
      throw py::value_error("query and key must have a head_dim of at least 1, got shapes " +
                            to_text(query_.shape) + " and " + to_text(key_.shape));
    for (const ArrayView* view : {&query_, &key_})
      if (size_at(*view, layout_.tokens) != size_at(value_, layout_.tokens))
        throw differ("query, key and value must share their length", *view, value_, layout_.tokens);
    if (size_at(key_, layout_.heads) != size_at(value_, layout_.heads))
      throw differ("key and value must share kv_heads", key_, value_, layout_.heads);
    const py::ssize_t heads = size_at(query_, layout_.heads), kv_heads = size_at(key_, layout_.heads);
    if (heads != 0 && (kv_heads == 0 || heads % kv_heads != 0))
      throw differ("the heads of query must be a multiple of the kv_heads of key and value", query_, key_,
                   layout_.heads);
  }

  // Decays by column have an axis more than those of tokens.
  void set_decay(Shape rows) {
    ArrayView tokens = decay_;
    if (decay_.shape.size() > rows.size()) {
      tokens.shape.pop_back();
      tokens.strides.pop_back();
      const bool fits = decay_.size(1) == 1 || decay_.size(1) == problem_.head_dim;
      problem_.decays_by_column = decay_.size(1) != 1;
      if (!fits || !broadcasts_to(tokens.shape, rows)) {
        rows.push_back(problem_.head_dim);
        throw shape_error(decay_, rows, "one number for each token and column of the keys");
      }
    }
    problem_.decay = operand_of_rows(tokens, rows);
    if (problem_.decays_by_column) problem_.decay.column_stride = decay_.stride(1);
  }

  static py::value_error shape_error(const ArrayView& view, const Shape& shape, const char* meaning) {
    return py::value_error(std::string(view.name) + " must broadcast to " + to_text(shape) + ", " + meaning +
                           ", got shape " + to_text(view.shape));
  }

  // An array with one number per token and key head. Axes that are missing or of length 1 are broadcast.
  Operand operand_of_rows(ArrayView view, const Shape& rows) {
    if (!broadcasts_to(view.shape, rows))
      throw shape_error(view, rows, "one number for each token and key head");
    view.shape.push_back(1);
    view.strides.push_back(0);
    return operand_of(view, layout_);
  }

  Operand operand_of(const ArrayView& view, const TokenLayout& layout) {
    const auto stride = [&](std::size_t axis) {
      return size_at(view, axis) == 1 ? 0 : view.stride(static_cast<int>(axis));
    };
    Operand operand;
    operand.data = view.data;
    operand.element = view.element;
    operand.head_stride = stride(layout.heads);
    operand.row_stride = stride(layout.tokens);
    operand.column_stride = stride(1);
    operand.batch_strides = batch_strides_of(view, std::min(view.axes(), 3), problem_.batch, memory_);
    return operand;
  }

  TokenLayout layout_{};
  ArrayView query_, key_, value_, decay_, beta_, state_;
  LinearProblem problem_{};
  Integers memory_;
  ResultType type_{};
  Shape output_shape_, state_shape_;
};

struct Numbers {
  std::optional<double> scale;
  int threads;
};

// Checks a call, and returns run(call, numbers); or NotImplemented if Python must convert an array.
template <class Run>
py::object call_linear(const py::handle (&arrays)[6], py::handle scale, py::handle starts_object,
                       py::handle threads, Run run) {
  Numbers numbers{{}, thread_count_of(threads)};
  if (!scale.is_none()) numbers.scale = finite_number_of("scale", scale);
  std::optional<Starts> starts;
  if (!starts_object.is_none()) starts = starts_of("starts", starts_object);
  LinearCall call;  // after the numbers, since reading them may run Python code that resizes an array
  if (!call.take(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5])) return not_implemented();
  call.check(starts ? &*starts : nullptr);
  return run(call, numbers);
}

}  // namespace

py::object linear_attention(py::handle query, py::handle key, py::handle value, py::handle decay,
                            py::handle beta, py::handle state, py::handle scale, py::handle starts_object,
                            py::handle return_state, py::handle out, py::handle threads) {
  const bool returns_state = flag_of("return_state", return_state);
  return call_linear({query, key, value, decay, beta, state}, scale, starts_object, threads,
                     [&](LinearCall& call, const Numbers& numbers) {
                       return call.run(numbers.scale, returns_state, out, numbers.threads);
                     });
}

py::object linear_attention_backward(py::handle grad_output, py::handle query, py::handle key,
                                     py::handle value, py::handle decay, py::handle beta, py::handle state,
                                     py::handle scale, py::handle starts_object, py::handle grad_state,
                                     py::handle threads) {
  return call_linear({query, key, value, decay, beta, state}, scale, starts_object, threads,
                     [&](LinearCall& call, const Numbers& numbers) {
                       return call.gradients(numbers.scale, grad_output, grad_state, numbers.threads);
                     });
}

}  // namespace regard
