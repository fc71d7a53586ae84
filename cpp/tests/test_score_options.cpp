// Tests the options of scores (distance biases, per-head numbers, functions) against calls that
// compute the same scores in another way.
#include "tests.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../dispatch/compute.hpp"
#include "../dispatch/attention/plan.hpp"
#include "arrays.hpp"

namespace {

struct Case {
  std::int64_t heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  std::int64_t query_offset, distances;
};

template <class T>
struct Call {
  Array<T> query, key, value, grad_output;
  Array<T> output, lse, grad_query, grad_key, grad_value, moved, tangent_output;
  std::int64_t offset;
  BackwardProblem backward{};

  explicit Call(const Case& c)
      : query(c.heads, c.q_len, c.head_dim, 1, 1), key(c.kv_heads, c.kv_len, c.head_dim, 1, 2),
        value(c.kv_heads, c.kv_len, c.value_dim, 1, 3), grad_output(c.heads, c.q_len, c.value_dim, 1, 4),
        output(c.heads, c.q_len, c.value_dim, 1, 0), lse(c.heads, c.q_len, 1, 1, 0),
        grad_query(c.heads, c.q_len, c.head_dim, 1, 0), grad_key(c.kv_heads, c.kv_len, c.head_dim, 1, 0),
        grad_value(c.kv_heads, c.kv_len, c.value_dim, 1, 0), moved(c.heads, c.q_len, c.value_dim, 1, 0),
        tangent_output(c.heads, c.q_len, c.value_dim, 1, 0), offset(c.query_offset) {
    AttentionProblem& problem = backward.forward = problem_of_sizes<T>(c);
    problem.query = query.operand_of(c.heads);
    problem.key = key.operand_of(c.kv_heads);
    problem.value = value.operand_of(c.kv_heads);
    problem.output = output.operand_of(c.heads);
    problem.lse = lse.operand_of(c.heads);
    problem.query_offset.data = &offset;
    backward.grad_output = grad_output.operand_of(c.heads);
    backward.grad_query = grad_query.operand_of(c.heads);
    backward.grad_key = grad_key.operand_of(c.kv_heads);
    backward.grad_value = grad_value.operand_of(c.kv_heads);
  }
  AttentionProblem& problem() { return backward.forward; }

  void compute(const Case& c, int threads) {
    attention_forward(problem(), threads, kNoSignal);
    attention_gradients(backward, threads, kNoSignal);
    TangentProblem tangent{};
    tangent.forward = problem();
    tangent.forward.output = moved.operand_of(c.heads);
    tangent.tangent_query = query.operand_of(c.heads);
    tangent.tangent_key = key.operand_of(c.kv_heads);
    tangent.tangent_output = tangent_output.operand_of(c.heads);
    attention_tangent(tangent, threads, kNoSignal);
  }
};

template <class T>
bool agree(const Array<T>& a, const Array<T>& b) {
  double largest = 1, worst = 0;
  for (std::int64_t i = 0; i < a.elements.count(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(b.elements[i])));
    worst = std::max(worst, std::fabs(static_cast<double>(a.elements[i]) - static_cast<double>(b.elements[i])));
  }
  return worst <= 400 * static_cast<double>(std::numeric_limits<T>::epsilon()) * largest;
}

template <class T>
void check_alike(Call<T>& got, Call<T>& wanted, const Case& c, const char* option) {
  got.compute(c, 3);
  wanted.compute(c, 1);
  const std::string what = std::string(" with ") + option + " in " + kName<T> + ", q_len " + std::to_string(c.q_len) +
                           ", kv_len " + std::to_string(c.kv_len) + ", " + std::to_string(c.heads) + " heads";
  check(agree(got.output, wanted.output), "output" + what);
  check(agree(got.lse, wanted.lse), "lse" + what);
  check(agree(got.grad_query, wanted.grad_query), "gradient of query" + what);
  check(agree(got.grad_key, wanted.grad_key), "gradient of key" + what);
  check(agree(got.grad_value, wanted.grad_value), "gradient of value" + what);
  check(agree(got.moved, wanted.moved), "output computed with its derivative" + what);
  check(agree(got.tangent_output, wanted.tangent_output), "derivative of output" + what);
}

// Tests a table of distances against a dense bias, and its gradient against the sums of the bias's
// gradient.
template <class T>
void test_distances(const Case& c) {
  const std::int64_t columns = 2 * c.distances - 1;
  const Array<T> table(c.heads, 1, columns, 1, 7);
  const Array<float> other_table(c.heads, 1, columns, 2, 7);  // of another type and stride
  const Array<T> bias(c.heads, c.q_len, c.kv_len, 1, 0), grad_bias(c.heads, c.q_len, c.kv_len, 1, 0);
  const Array<double> grad_table(c.heads, 1, columns, 1, 0);
  const auto column_of = [&](std::int64_t query, std::int64_t key) {
    return std::clamp<std::int64_t>(c.distances - 1 + key - query - c.query_offset, 0, columns - 1);
  };
  for (const bool is_other : {false, true}) {
    for (std::int64_t i = 0; i < bias.elements.count(); ++i) {
      const std::int64_t key = i % c.kv_len, query = i / c.kv_len % c.q_len, head = i / c.kv_len / c.q_len;
      bias.elements[i] = is_other ? static_cast<T>(other_table.at(head, 0, column_of(query, key)))
                                  : table.at(head, 0, column_of(query, key));
      grad_bias.elements[i] = 0;
    }
    for (std::int64_t i = 0; i < grad_table.elements.count(); ++i) grad_table.elements[i] = 0;
    Call<T> got(c), wanted(c);
    got.problem().distance_bias = is_other ? other_table.operand_of(c.heads) : table.operand_of(c.heads);
    got.problem().distances = c.distances;
    got.backward.grad_distance_bias = grad_table.operand_of(c.heads);
    wanted.problem().bias = bias.operand_of(c.heads);
    wanted.backward.grad_bias = grad_bias.operand_of(c.heads);
    check_alike(got, wanted, c, "distance biases");
    std::vector<double> sums(static_cast<std::size_t>(grad_table.elements.count()));
    for (std::int64_t i = 0; i < grad_bias.elements.count(); ++i) {
      const std::int64_t key = i % c.kv_len, query = i / c.kv_len % c.q_len, head = i / c.kv_len / c.q_len;
      sums[static_cast<std::size_t>(head * columns + column_of(query, key))] += static_cast<double>(grad_bias.elements[i]);
    }
    double worst = 0;
    for (std::size_t i = 0; i < sums.size(); ++i)
      worst = std::max(worst, std::fabs(sums[i] - grad_table.elements[static_cast<std::int64_t>(i)]));
    check(worst <= 1000 * static_cast<double>(std::numeric_limits<T>::epsilon()), "gradient of distance biases");
  }
}

// Tests per-head scales against scaled queries, and equal per-head numbers against a single number.
template <class T>
void test_numbers_of_heads(const Case& c) {
  std::vector<double> scales, caps(static_cast<std::size_t>(c.heads), 1.5);
  for (std::int64_t head = 0; head < c.heads; ++head) scales.push_back(0.25 * static_cast<double>(head + 1));
  Call<T> scaled(c), by_queries(c);
  scaled.problem().scales = {scales.data(), 1, nullptr};
  scaled.problem().softcap = by_queries.problem().softcap = 2;
  by_queries.problem().scale = 1;
  const auto factor = [&](std::int64_t i) {
    return static_cast<T>(scales[static_cast<std::size_t>(i / c.head_dim / c.q_len)]);
  };
  for (std::int64_t i = 0; i < scaled.query.elements.count(); ++i) by_queries.query.elements[i] *= factor(i);
  scaled.compute(c, 2);
  by_queries.compute(c, 1);
  for (std::int64_t i = 0; i < scaled.query.elements.count(); ++i) by_queries.grad_query.elements[i] *= factor(i);
  check(agree(scaled.output, by_queries.output), "output with scales of heads");
  check(agree(scaled.grad_query, by_queries.grad_query), "gradient of query with scales of heads");
  check(agree(scaled.grad_key, by_queries.grad_key), "gradient of key with scales of heads");
  check(agree(scaled.grad_value, by_queries.grad_value), "gradient of value with scales of heads");
  Call<T> of_heads(c), of_all(c);
  of_heads.problem().softcaps = {caps.data(), 1, nullptr};
  of_all.problem().softcap = caps[0];
  check_alike(of_heads, of_all, c, "caps of heads");
}

// 2 x - slope |position - key|, with the head's slope: twice the scale, with ALiBi.
template <class T>
void twice_with_alibi(T* scores, std::int64_t queries, std::int64_t keys, std::int64_t stride,
                      const std::int64_t* positions, std::int64_t first_key, std::int64_t head, std::int64_t entry,
                      void* slopes) {
  for (std::int64_t k = 0; k < keys; ++k)
    for (std::int64_t q = 0; q < queries; ++q) {
      T& score = scores[k * stride + q];
      const auto distance = static_cast<T>(std::abs(positions[q] - first_key - k));
      score = 2 * score - static_cast<T>(static_cast<const double*>(slopes)[head + entry]) * distance;
    }
}

template <class T>
void two(T* scores, std::int64_t queries, std::int64_t keys, std::int64_t stride, const std::int64_t*, std::int64_t,
         std::int64_t, std::int64_t, void*) {
  for (std::int64_t k = 0; k < keys; ++k)
    for (std::int64_t q = 0; q < queries; ++q) scores[k * stride + q] = 2;
}

template <class T>
void test_function(const Case& c) {
  std::vector<double> slopes;
  for (std::int64_t head = 0; head < c.heads; ++head) slopes.push_back(0.125 * static_cast<double>(head));
  const ScoreFunction function{reinterpret_cast<void*>(twice_with_alibi<T>), reinterpret_cast<void*>(two<T>),
                               slopes.data()};
  Call<T> got(c), wanted(c);
  got.problem().score_function = &function;
  wanted.problem().scale *= 2;
  wanted.problem().alibi_slopes = {slopes.data(), 1, nullptr};
  check_alike(got, wanted, c, "a function of scores");
}

}  // namespace

template <class T>
void test_score_options() {
  const std::vector<Case> cases = {
      {1, 1, 1, 6, 2, 2, 0, 3},      {2, 2, 70, 200, 16, 8, 100, 40}, {4, 2, 50, 130, 8, 5, 0, 200},
      {3, 1, 2, 400, 12, 16, 390, 1}, {6, 2, 33, 97, 24, 24, -40, 60},
  };
  for (const Case& c : cases) {
    test_distances<T>(c);
    test_numbers_of_heads<T>(c);
    test_function<T>(c);
  }
}

template void test_score_options<float>();
template void test_score_options<double>();
