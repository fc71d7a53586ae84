// Tests gradients, and derivatives along a direction, against explicit sums in double from the
// forward call's weights, over arrays that end at a guard page.
#include "tests.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../dispatch/compute.hpp"
#include "../dispatch/attention/plan.hpp"
#include "arrays.hpp"

namespace {

// long double is computed in software on AArch64 and is slow under emulation; the tolerance allows
// for sums in double.
using Wide = double;

struct Case {
  std::int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  bool is_causal;
  std::int64_t query_offset;
  bool has_mask, has_bias;
  int step;  // every array consists of every n-th element of a longer row
  double dropout;
};

template <class T>
bool agrees(const Array<T>& got, const Array<Wide>& wanted, std::int64_t matrices) {
  Wide largest = 1, worst = 0;
  for (std::int64_t m = 0; m < matrices; ++m)
    for (std::int64_t r = 0; r < got.rows; ++r)
      for (std::int64_t c = 0; c < got.columns; ++c) {
        largest = std::max<Wide>(largest, std::fabs(wanted.at(m, r, c)));
        worst = std::max<Wide>(worst, std::fabs(got.at(m, r, c) - wanted.at(m, r, c)));
      }
  return worst <= 200 * static_cast<Wide>(std::numeric_limits<T>::epsilon()) * largest;
}

template <class T>
void test_case(const Case& c) {
  const std::int64_t group = c.heads / c.kv_heads, heads = c.batch * c.heads, kv_heads = c.batch * c.kv_heads;
  const auto queries = [&](std::int64_t columns, unsigned seed) { return Array<T>(heads, c.q_len, columns, c.step, seed); };
  const auto keys = [&](std::int64_t columns, unsigned seed) { return Array<T>(kv_heads, c.kv_len, columns, c.step, seed); };
  const Array<T> query = queries(c.head_dim, 1), tangent_query = queries(c.head_dim, 2), grad_output = queries(c.value_dim, 3);
  const Array<T> key = keys(c.head_dim, 4), tangent_key = keys(c.head_dim, 5);
  const Array<T> value = keys(c.value_dim, 6), tangent_value = keys(c.value_dim, 7);
  const Array<T> output = queries(c.value_dim, 0), tangent_output = queries(c.value_dim, 0), moved = queries(c.value_dim, 0);
  const Array<T> lse = queries(1, 0), grad_lse = queries(1, 8), tangent_lse = queries(1, 0);
  const Array<T> weights(heads, c.q_len, c.kv_len, 1, 0), dropped(heads, c.q_len, c.kv_len, 1, 0);
  Guarded<unsigned char> bits(c.q_len * c.kv_len);
  bits.fill_bits(9);
  const Array<float> bias(1, c.q_len, c.kv_len, 1, 10);
  const Array<double> grad_bias(1, c.q_len, c.kv_len, 1, 0);

  BackwardProblem backward{};
  AttentionProblem& problem = backward.forward = problem_of_sizes<T>(c, c.batch);
  if (c.is_causal) problem.window_right = 0;
  problem.query = query.operand_of(c.heads);
  problem.key = key.operand_of(c.kv_heads);
  problem.value = value.operand_of(c.kv_heads);
  const auto shared_by_heads = [](Operand one) {
    one.head_stride = 0;
    one.batch_strides = nullptr;
    return one;
  };
  if (c.has_mask) problem.mask = shared_by_heads(operand(bits.data(), 1, c.q_len, c.kv_len));
  if (c.has_bias) problem.bias = shared_by_heads(bias.operand_of(1));
  problem.query_offset.data = &c.query_offset;
  problem.output = output.operand_of(c.heads);
  problem.lse = lse.operand_of(c.heads);
  problem.weights = weights.operand_of(c.heads);
  attention_forward(problem, 1, kNoSignal);
  if (c.dropout != 0) {
    problem.dropout_factor = 1 / (1 - c.dropout);
    problem.dropout_limit = static_cast<std::uint32_t>(std::ldexp(c.dropout, 32));
    problem.dropout_seed = 0x123456789abcdefull;
  }
  problem.weights = dropped.operand_of(c.heads);
  attention_forward(problem, 1, kNoSignal);
  problem.weights = {};

  const Array<T> grad_query = queries(c.head_dim, 0), grad_key = keys(c.head_dim, 0), grad_value = keys(c.value_dim, 0);
  backward.grad_output = grad_output.operand_of(c.heads);
  backward.grad_lse = grad_lse.operand_of(c.heads);
  backward.grad_query = grad_query.operand_of(c.heads);
  backward.grad_key = grad_key.operand_of(c.kv_heads);
  backward.grad_value = grad_value.operand_of(c.kv_heads);
  if (c.has_bias) backward.grad_bias = shared_by_heads(grad_bias.operand_of(1));
  attention_gradients(backward, 1, kNoSignal);
  const std::size_t bytes = static_cast<std::size_t>(grad_key.elements.count()) * sizeof(T);
  std::vector<char> first(bytes);
  if (bytes > 0) std::memcpy(first.data(), grad_key.elements.data(), bytes);
  backward.grad_bias = {};
  attention_gradients(backward, 3, kNoSignal);
  check(bytes == 0 || std::memcmp(first.data(), grad_key.elements.data(), bytes) == 0,
        "the same bits of gradients with 1 and 3 threads");

  TangentProblem tangent{};
  tangent.forward = problem;
  tangent.forward.output = moved.operand_of(c.heads);
  tangent.tangent_query = tangent_query.operand_of(c.heads);
  tangent.tangent_key = tangent_key.operand_of(c.kv_heads);
  tangent.tangent_value = tangent_value.operand_of(c.kv_heads);
  tangent.tangent_output = tangent_output.operand_of(c.heads);
  tangent.tangent_lse = tangent_lse.operand_of(c.heads);
  attention_tangent(tangent, 2, kNoSignal);

  const Array<Wide> want_query(heads, c.q_len, c.head_dim, 1, 0), want_key(kv_heads, c.kv_len, c.head_dim, 1, 0);
  const Array<Wide> want_value(kv_heads, c.kv_len, c.value_dim, 1, 0), want_bias(1, c.q_len, c.kv_len, 1, 0);
  const Array<Wide> want_output(heads, c.q_len, c.value_dim, 1, 0), want_tangent(heads, c.q_len, c.value_dim, 1, 0);
  const Array<Wide> want_tangent_lse(heads, c.q_len, 1, 1, 0);
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t kv_head = head / c.heads * c.kv_heads + head % c.heads / group;
    for (std::int64_t i = 0; i < c.q_len; ++i) {
      Wide delta = -static_cast<Wide>(grad_lse.at(head, i, 0)), of_lse = 0;
      for (std::int64_t d = 0; d < c.value_dim; ++d)
        delta += static_cast<Wide>(grad_output.at(head, i, d)) * output.at(head, i, d);
      std::vector<Wide> of_scores(static_cast<std::size_t>(c.kv_len));
      for (std::int64_t j = 0; j < c.kv_len; ++j) {
        const Wide weight = weights.at(head, i, j), seen = dropped.at(head, i, j);
        const Wide factor = weight == 0 ? 0 : seen / weight;
        Wide grad_weight = 0, along = 0;
        for (std::int64_t d = 0; d < c.value_dim; ++d) {
          grad_weight += static_cast<Wide>(grad_output.at(head, i, d)) * value.at(kv_head, j, d);
          want_value.at(kv_head, j, d) += seen * grad_output.at(head, i, d);
          want_output.at(head, i, d) += seen * value.at(kv_head, j, d);
        }
        const Wide grad_score = weight * (factor * grad_weight - delta);
        want_bias.at(0, i, j) += grad_score;
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
          want_query.at(head, i, d) += problem.scale * grad_score * key.at(kv_head, j, d);
          want_key.at(kv_head, j, d) += problem.scale * grad_score * query.at(head, i, d);
          along += problem.scale * (static_cast<Wide>(tangent_query.at(head, i, d)) * key.at(kv_head, j, d) +
                                    static_cast<Wide>(query.at(head, i, d)) * tangent_key.at(kv_head, j, d));
        }
        of_scores[static_cast<std::size_t>(j)] = along;
        of_lse += weight * along;
      }
      want_tangent_lse.at(head, i, 0) = of_lse;
      for (std::int64_t d = 0; d < c.value_dim; ++d)
        for (std::int64_t j = 0; j < c.kv_len; ++j)
          want_tangent.at(head, i, d) +=
              static_cast<Wide>(dropped.at(head, i, j)) *
              ((of_scores[static_cast<std::size_t>(j)] - of_lse) * value.at(kv_head, j, d) + tangent_value.at(kv_head, j, d));
    }
  }
  const std::string what = std::string(kName<T>) + " attention, q_len " + std::to_string(c.q_len) + ", kv_len " +
                           std::to_string(c.kv_len) + ", dims " + std::to_string(c.head_dim) + " and " +
                           std::to_string(c.value_dim);
  check(agrees(grad_query, want_query, heads), "gradient of query of " + what);
  check(agrees(grad_key, want_key, kv_heads), "gradient of key of " + what);
  check(agrees(grad_value, want_value, kv_heads), "gradient of value of " + what);
  if (c.has_bias) {
    Wide worst = 0;
    for (std::int64_t i = 0; i < c.q_len; ++i)
      for (std::int64_t j = 0; j < c.kv_len; ++j)
        worst = std::max<Wide>(worst, std::fabs(grad_bias.at(0, i, j) - want_bias.at(0, i, j)));
    check(worst <= 500 * static_cast<Wide>(std::numeric_limits<T>::epsilon()), "gradient of bias of " + what);
  }
  check(agrees(moved, want_output, heads), "output computed with its derivative, of " + what);
  check(agrees(tangent_output, want_tangent, heads), "derivative of the output of " + what);
  check(agrees(tangent_lse, want_tangent_lse, heads), "derivative of lse of " + what);
}

}  // namespace

template <class T>
void test_gradients() {
  const std::vector<Case> cases = {
      {1, 1, 1, 6, 6, 2, 2, false, 0, false, false, 1, 0},
      {2, 4, 2, 7, 13, 5, 3, true, 6, false, false, 1, 0},
      {1, 1, 1, 65, 97, 64, 64, false, 0, false, false, 1, 0},
      {1, 1, 1, 48, 192, 128, 64, true, 144, false, false, 1, 0},
      {1, 6, 1, 33, 200, 17, 33, true, 20, true, false, 1, 0},
      {1, 3, 3, 50, 100, 32, 8, false, 0, false, true, 1, 0.25},
      {1, 1, 1, 200, 50, 8, 16, true, -20, false, false, 2, 0},
      {2, 2, 1, 1, 193, 40, 24, false, 0, true, true, 3, 0.5},
      {1, 1, 1, 20, 900, 16, 16, true, 880, false, false, 1, 0.125},
      {1, 1, 1, 3, 0, 4, 4, false, 0, false, false, 1, 0},
      {0, 2, 2, 3, 5, 4, 4, false, 0, false, false, 1, 0},
  };
  for (const Case& c : cases) test_case<T>(c);
}

template void test_gradients<float>();
template void test_gradients<double>();
