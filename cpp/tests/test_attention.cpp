// Tests attention against explicit sums in long double, over arrays that end at a guard page.
#include "tests.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../dispatch/attention/plan.hpp"
#include "../dispatch/attention/int8.hpp"
#include "testing.hpp"

namespace {

enum class MaskKind { none, boolean, additive, narrow };  // narrow: additive, in bfloat16

struct Case {
  std::int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  bool is_causal;
  std::int64_t query_offset;
  MaskKind mask;
  int key_step;  // keys and values take every n-th element of a longer row
  std::int64_t left = kUnbounded, right = kUnbounded;  // the window
  std::int64_t key_length = kUnbounded;
  double softcap = 0;
  bool has_alibi = false, has_sinks = false;
};

// The number of elements up to the last one that is read: the guard page follows it.
std::int64_t extent(std::int64_t matrices, std::int64_t rows, std::int64_t columns, int step) {
  const std::int64_t elements = matrices * rows * columns;
  return elements == 0 ? 0 : (elements - 1) * step + 1;
}

// Tests queries and keys in int8, and the same call as on a CPU on which int8 is not faster.
// Results go to `again`.
void test_int8(AttentionProblem problem, const Guarded<float>& exact,
               Guarded<float>& again) {
  problem.precision = Precision::int8;
  problem.output.data = again.data();
  problem.weights.data = problem.lse.data = nullptr;
  const std::size_t bytes = static_cast<std::size_t>(again.count()) * sizeof(float);
  attention_forward(problem, 3, kNoSignal);
  // Rounding numbers around 1 to steps of 1 / 127 moves scores by some hundredths.
  bool is_near = true;
  for (std::int64_t i = 0; i < again.count(); ++i) is_near &= std::fabs(again[i] - exact[i]) <= 0.1f;
  check(is_near, "attention in int8, head_dim " + std::to_string(problem.head_dim));
  forbid_int8(true);
  attention_forward(problem, 3, kNoSignal);
  forbid_int8(false);
  if (bytes > 0)
    check(std::memcmp(exact.data(), again.data(), bytes) == 0, "int8 if float32 is as fast");
}

template <class T>
void test_attention(const Case& c) {
  const std::int64_t group = c.heads / c.kv_heads;
  Guarded<T> query(c.batch * c.heads * c.q_len * c.head_dim);
  Guarded<T> key(extent(c.batch * c.kv_heads, c.kv_len, c.head_dim, c.key_step));
  Guarded<T> value(extent(c.batch * c.kv_heads, c.kv_len, c.value_dim, c.key_step));
  Guarded<unsigned char> bits(c.q_len * c.kv_len);
  Guarded<float> bias(c.q_len * c.kv_len);
  Guarded<T> output(c.batch * c.heads * c.q_len * c.value_dim);
  Guarded<T> again(output.count());
  Guarded<T> weights(c.batch * c.heads * c.q_len * c.kv_len);
  Guarded<T> lse(c.batch * c.heads * c.q_len);
  query.fill_normal(1);
  key.fill_normal(2);
  value.fill_normal(3);
  bits.fill_bits(4);
  bias.fill_normal(5);
  for (std::int64_t i = 0; i < bias.count(); i += 3) bias[i] = -INFINITY;
  Guarded<std::uint16_t> upper(bias.count());
  for (std::int64_t i = 0; c.mask == MaskKind::narrow && i < bias.count(); ++i) {
    std::uint32_t number;
    std::memcpy(&number, &bias[i], sizeof number);
    upper[i] = static_cast<std::uint16_t>(number >> 16);
    number &= 0xffff0000u;
    std::memcpy(&bias[i], &number, sizeof number);
  }

  AttentionProblem problem = problem_of_sizes<T>(c, c.batch);
  problem.window_left = c.left;
  problem.window_right = c.is_causal ? 0 : c.right;
  problem.softcap = c.softcap;
  std::vector<double> slopes, sinks;
  for (std::int64_t head = 0; head < c.heads; ++head) {
    slopes.push_back(0.125 * static_cast<double>(head + 1));
    sinks.push_back(static_cast<double>(head) - 1);
  }
  if (c.has_alibi) {
    problem.alibi_slopes = {slopes.data(), 1, nullptr};
  }
  if (c.has_sinks) problem.sinks = sinks.data(), problem.sinks_stride = 1;
  problem.query = operand(query.data(), c.heads, c.q_len, c.head_dim);
  problem.key = operand(key.data(), c.kv_heads, c.kv_len, c.head_dim, c.key_step);
  problem.value = operand(value.data(), c.kv_heads, c.kv_len, c.value_dim, c.key_step);
  if (c.mask == MaskKind::boolean)
    problem.mask = operand(bits.data(), 1, c.q_len, c.kv_len);
  else if (c.mask == MaskKind::additive)
    problem.bias = operand(bias.data(), 1, c.q_len, c.kv_len);
  if (c.mask == MaskKind::narrow) {
    problem.bias = operand(bias.data(), 1, c.q_len, c.kv_len);
    problem.bias.data = upper.data();
    problem.bias.element = Element::bfloat16;
  }
  for (Operand* mask : {&problem.mask, &problem.bias}) {
    mask->head_stride = 0;
    mask->batch_strides = nullptr;
  }
  problem.output = operand(output.data(), c.heads, c.q_len, c.value_dim);
  problem.weights = operand(weights.data(), c.heads, c.q_len, c.kv_len);
  problem.lse = operand(lse.data(), c.heads, c.q_len, 1);
  std::int64_t offset = c.query_offset;
  problem.query_offset.data = &offset;
  std::int64_t length = std::min(c.key_length, c.kv_len);
  problem.key_lengths.data = &length;

  attention_forward(problem, 1, kNoSignal);
  AttentionProblem parallel = problem;
  parallel.output.data = again.data();
  attention_forward(parallel, 3, kNoSignal);
  check(std::memcmp(output.data(), again.data(),
                    static_cast<std::size_t>(output.count()) * sizeof(T)) == 0,
        "the same bits with 1 and 3 threads");
  AttentionProblem plain = problem;  // few rows without weights: the decode kernel
  plain.output.data = again.data();
  plain.weights.data = nullptr;
  attention_forward(plain, 1, kNoSignal);
  check(std::memcmp(output.data(), again.data(),
                    static_cast<std::size_t>(output.count()) * sizeof(T)) == 0,
        "the same bits without weights");

  if constexpr (sizeof(T) == 4) test_int8(problem, output, again);

  bool outputs_agree = true, weights_agree = true, lse_agrees = true;
  const long double allowed = 200 * static_cast<long double>(std::numeric_limits<T>::epsilon());
  std::vector<long double> scores(static_cast<std::size_t>(c.kv_len));
  for (std::int64_t row = 0; row < c.batch * c.heads * c.q_len; ++row) {
    const std::int64_t i = row % c.q_len, head = row / c.q_len % c.heads;
    const std::int64_t kv_head = row / c.q_len / c.heads * c.kv_heads + head / group;
    long double top = -INFINITY;
    for (std::int64_t j = 0; j < c.kv_len; ++j) {
      const std::int64_t position = i + c.query_offset;
      const std::int64_t right = c.is_causal ? 0 : c.right;
      bool visible = j < length && (c.left == kUnbounded || position - j <= c.left) &&
                     (right == kUnbounded || j - position <= right);
      long double score = 0;
      for (std::int64_t d = 0; d < c.head_dim; ++d)
        score += static_cast<long double>(query[row * c.head_dim + d]) *
                 key[((kv_head * c.kv_len + j) * c.head_dim + d) * c.key_step];
      score *= problem.scale;
      if (c.softcap != 0) score = c.softcap * std::tanh(score / c.softcap);
      if (c.has_alibi)
        score -= slopes[static_cast<std::size_t>(head)] *
                 static_cast<long double>(std::abs(position - j));
      if (c.mask == MaskKind::boolean) visible &= bits[i * c.kv_len + j] != 0;
      if (c.mask == MaskKind::additive || c.mask == MaskKind::narrow) {
        visible &= bias[i * c.kv_len + j] != -INFINITY;
        score += bias[i * c.kv_len + j];
      }
      scores[static_cast<std::size_t>(j)] = visible ? score : -INFINITY;
      top = std::max(top, scores[static_cast<std::size_t>(j)]);
    }
    const long double sink =
        c.has_sinks ? static_cast<long double>(sinks[static_cast<std::size_t>(head)]) : -INFINITY;
    top = std::max(top, sink);
    long double sum = sink == -INFINITY ? 0 : std::exp(sink - top);
    for (long double& score : scores) {
      score = score == -INFINITY ? 0 : std::exp(score - top);
      sum += score;
    }
    const long double wanted_lse = sum == 0 ? -INFINITY : top + std::log(sum);
    lse_agrees &= lse[row] == static_cast<T>(wanted_lse) ||
                  std::fabs(lse[row] - wanted_lse) <= allowed * (1 + std::fabs(wanted_lse));
    for (std::int64_t j = 0; j < c.kv_len; ++j) {
      const long double wanted = sum == 0 ? 0 : scores[static_cast<std::size_t>(j)] / sum;
      weights_agree &= std::fabs(weights[row * c.kv_len + j] - wanted) <= allowed;
    }
    for (std::int64_t d = 0; d < c.value_dim; ++d) {
      long double wanted = 0;
      for (std::int64_t j = 0; j < c.kv_len; ++j)
        wanted += sum == 0 ? 0
                           : scores[static_cast<std::size_t>(j)] / sum *
                                 value[((kv_head * c.kv_len + j) * c.value_dim + d) * c.key_step];
      outputs_agree &= std::fabs(output[row * c.value_dim + d] - wanted) <= allowed;
    }
  }
  const std::string what = std::string(kName<T>) + " attention, q_len " + std::to_string(c.q_len) +
                           ", kv_len " + std::to_string(c.kv_len) + ", dims " +
                           std::to_string(c.head_dim) + " and " + std::to_string(c.value_dim);
  check(outputs_agree, "output of " + what);
  check(weights_agree, "weights of " + what);
  check(lse_agrees, "lse of " + what);
}

}  // namespace

template <class T>
void test_attention() {
  const std::vector<Case> cases = {
      {1, 1, 1, 6, 6, 2, 2, false, 0, MaskKind::none, 1},
      {2, 4, 2, 7, 13, 5, 3, true, 6, MaskKind::none, 1},
      {1, 2, 2, 65, 97, 64, 64, false, 0, MaskKind::none, 1},
      {1, 6, 1, 33, 200, 17, 33, true, 20, MaskKind::boolean, 1},
      {1, 3, 3, 50, 100, 32, 8, false, 0, MaskKind::additive, 1},
      {1, 3, 3, 50, 100, 32, 8, false, 0, MaskKind::narrow, 1},
      {1, 2, 1, 5, 7, 8, 8, false, 0, MaskKind::narrow, 1},
      {1, 4, 2, 1, 203, 8, 8, false, 0, MaskKind::narrow, 1},
      {1, 1, 1, 200, 50, 8, 16, true, -20, MaskKind::none, 2},
      {2, 2, 1, 1, 193, 40, 24, false, 0, MaskKind::boolean, 3},
      {1, 1, 1, 3, 0, 4, 4, false, 0, MaskKind::none, 1},
      {0, 2, 2, 3, 5, 4, 4, false, 0, MaskKind::none, 1},
      {1, 2, 1, 60, 300, 16, 16, false, 100, MaskKind::none, 1, 20, 3},
      {1, 1, 1, 33, 20, 12, 12, false, 25, MaskKind::none, 1, 5, 0},
      {2, 4, 2, 20, 150, 16, 8, true, 90, MaskKind::boolean, 1, 70, kUnbounded, 131, 2.0, true, true},
      {1, 6, 2, 9, 101, 24, 7, false, 5, MaskKind::additive, 2, kUnbounded, 60, 97, 1.5, true, true},
      {1, 2, 2, 5, 40, 8, 8, true, -3, MaskKind::none, 1, kUnbounded, 0, 0, 0, false, true},
  };
  for (const Case& c : cases) test_attention<T>(c);
}

template void test_attention<float>();
template void test_attention<double>();
