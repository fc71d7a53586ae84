// Tests bfloat16 products. The plain arithmetic is compared with a model that computes number by
// number, and with the instruction if the CPU has it. Attention computed with the plain arithmetic
// is compared with attention to rounded arrays, and its gradients with sums in double of products
// of rounded numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../dispatch/compute.hpp"
#include "../dispatch/attention/plan.hpp"
#include "../dispatch/cpu_features.hpp"
#include "arrays.hpp"
#include "testing_kernels.hpp"
#include "tests.hpp"

namespace {

constexpr std::int64_t kVectors = 4096;

float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

float number_of(std::uint32_t bits) {
  float number = 0;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

std::uint32_t bits_of(float number) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

float wanted_dot(float sum, std::uint32_t a, std::uint32_t b) {
  sum = flushed(sum);
  for (const int shift : {0, 16}) {  // the high halves first
    const float x = flushed(number_of(a << shift & 0xffff0000u)), y = flushed(number_of(b << shift & 0xffff0000u));
    sum = flushed(std::fma(x, y, sum));
  }
  return sum;
}

// Numbers of any exponent, including NaN, infinity and subnormal numbers, if `is_wild`; otherwise
// near 1.
std::vector<std::uint32_t> words(std::uint64_t seed, bool is_wild) {
  std::vector<std::uint32_t> all(static_cast<std::size_t>(kVectors * active_target().vector_bytes / 4));
  for (std::uint32_t& word : all) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    word = static_cast<std::uint32_t>(seed >> 32);
    if (!is_wild) word = (word & 0x80ff80ffu) | 0x3f003f00u;
  }
  return all;
}

bool same(float a, float b) { return (a != a && b != b) || bits_of(a) == bits_of(b); }

void test_dots(bool is_wild) {
  const TestingKernels& kernels = testing_kernels<float>();
  const std::vector<std::uint32_t> a = words(1, is_wild), b = words(2, is_wild), before = words(3, is_wild);
  std::vector<std::uint32_t> plain = before, instruction = before;
  kernels.plain_dot_of_pairs(a.data(), b.data(), plain.data(), kVectors);
  const bool has_instruction = kernels.dot_of_pairs && cpu_has("avx512_bf16");
  if (has_instruction) kernels.dot_of_pairs(a.data(), b.data(), instruction.data(), kVectors);
  // The targets baseline and wide round a product before they add it, which matters if the product
  // is out of range.
  const std::string target = active_target().name;
  const bool fuses = target != "baseline" && target != "wide";
  bool agrees = true, instruction_agrees = true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float got = number_of(plain[i]);
    if (fuses || !is_wild) agrees &= same(got, wanted_dot(number_of(before[i]), a[i], b[i]));
    if (has_instruction) instruction_agrees &= same(number_of(instruction[i]), got);
  }
  check(agrees, "dots of pairs of bfloat16");
  check(instruction_agrees, "dots of pairs by the instruction");
}

std::uint16_t upper_half(float value) {
  const std::uint32_t bits = bits_of(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float rounded_to_bfloat16(float value) { return number_of(static_cast<std::uint32_t>(upper_half(value)) << 16); }

struct AttentionCase {
  std::int64_t heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  bool is_causal;
};

void test_attention_in_bfloat16(const AttentionCase& c) {
  const auto [heads, kv_heads, q_len, kv_len, head_dim, value_dim, is_causal] = c;
  Guarded<float> query(heads * q_len * head_dim), key(kv_heads * kv_len * head_dim), value(kv_heads * kv_len * value_dim);
  Guarded<float> exact(heads * q_len * value_dim), output(exact.count()), again(exact.count());
  query.fill_normal(1);
  key.fill_normal(2);
  value.fill_normal(3);
  // Every third number is halfway between two bfloat16 numbers.
  for (Guarded<float>* array : {&query, &key, &value})
    for (std::int64_t i = 0; i < array->count(); i += 3)
      (*array)[i] = number_of((bits_of((*array)[i]) & 0xffff0000u) | 0x8000u);
  AttentionProblem problem = problem_of_sizes<float>(c);
  problem.precision = Precision::bfloat16;
  if (is_causal) problem.window_right = 0;
  const std::int64_t offset = 0;
  problem.query_offset.data = &offset;
  problem.query = operand(query.data(), heads, q_len, head_dim);
  problem.key = operand(key.data(), kv_heads, kv_len, head_dim);
  problem.value = operand(value.data(), kv_heads, kv_len, value_dim);
  problem.output = operand(output.data(), heads, q_len, value_dim);

  const Target& target = active_target();
  const Target plain = with_bfloat16(target, testing_kernels<float>().bfloat16);
  exchange_target(&plain);
  attention_forward(problem, 1, kNoSignal);
  problem.output.data = again.data();
  attention_forward(problem, 3, kNoSignal);
  // Keys and values stored in bfloat16: they are read in place, or copied.
  Guarded<std::uint16_t> stored_key(key.count()), stored_value(value.count());
  for (std::int64_t i = 0; i < key.count(); ++i) stored_key[i] = upper_half(key[i]);
  for (std::int64_t i = 0; i < value.count(); ++i) stored_value[i] = upper_half(value[i]);
  Guarded<float> of_stored(output.count());
  AttentionProblem stored = problem;
  stored.key.data = stored_key.data();
  stored.value.data = stored_value.data();
  stored.key.element = stored.value.element = Element::bfloat16;
  stored.output.data = of_stored.data();
  attention_forward(stored, 2, kNoSignal);
  // A value that is not finite after rounding changes the rows that see it, and no bit of other
  // rows.
  Guarded<float> of_spoiled(output.count());
  problem.output.data = of_spoiled.data();
  const std::int64_t seen_from = std::min(q_len, kv_len) - 1;
  float& spoiled = value[seen_from * value_dim];
  const float before = spoiled;
  bool hides = true;
  for (const float number : {NAN, 3.4e38f}) {
    spoiled = number;
    attention_forward(problem, 1, kNoSignal);
    for (std::int64_t i = 0; i < of_spoiled.count(); ++i) {
      const bool sees = (!is_causal || i / value_dim % q_len >= seen_from) && i % value_dim == 0;
      hides &= sees ? !std::isfinite(of_spoiled[i]) : bits_of(of_spoiled[i]) == bits_of(output[i]);
    }
  }
  spoiled = before;
  exchange_target(&target);
  check(hides, "a value that is not finite in bfloat16 changes only the rows that see it");
  const std::size_t bytes = static_cast<std::size_t>(output.count()) * sizeof(float);
  check(bytes == 0 || std::memcmp(output.data(), again.data(), bytes) == 0, "the same bits in bfloat16 with 3 threads");

  check(bytes == 0 || std::memcmp(output.data(), of_stored.data(), bytes) == 0,
        "the same bits with arrays stored in bfloat16");

  float largest = 0;
  for (Guarded<float>* array : {&query, &key, &value})
    for (std::int64_t i = 0; i < array->count(); ++i) (*array)[i] = rounded_to_bfloat16((*array)[i]);
  for (std::int64_t i = 0; i < value.count(); ++i) largest = std::max(largest, std::fabs(value[i]));
  problem.precision = Precision::full;
  problem.output.data = exact.data();
  attention_forward(problem, 1, kNoSignal);
  bool is_near = true, is_rounded = false;
  // Rounding the weights costs 2^-8 of each, and sums have another order.
  for (std::int64_t i = 0; i < exact.count(); ++i) {
    is_near &= std::fabs(output[i] - exact[i]) <= largest / 256;
    is_rounded |= std::fabs(output[i] - exact[i]) > largest * 1e-6f;
  }
  check(is_rounded, "weights that are rounded to bfloat16");
  check(is_near, "attention in bfloat16, q_len " + std::to_string(q_len) + ", kv_len " + std::to_string(kv_len));
}

struct GradientCase {
  std::int64_t heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  bool is_causal, has_mask;
  double softcap, dropout;
  int step;
};

// A sum of products, and its tolerated distance from the sum with numbers rounded to bfloat16: 2^-8
// of each product, and a little for earlier float32 rounding.
struct Sum {
  double value = 0, magnitude = 0;

  void add(double a, double b) {
    value += a * b;
    magnitude += std::fabs(a * b);
  }
  bool admits(float got) const { return std::fabs(got - value) <= (0x1p-8 + 2e-5) * magnitude + 1e-6; }
};

// Each element accumulates the products that are added to it.
class Sums {
 public:
  Sums(std::int64_t rows, std::int64_t columns) : columns_(columns), sums_(static_cast<std::size_t>(rows * columns)) {}
  Sum& at(std::int64_t row, std::int64_t column) { return sums_[static_cast<std::size_t>(row * columns_ + column)]; }
  bool admit(const Array<float>& got) {
    bool all = true;
    for (std::size_t i = 0; i < sums_.size(); ++i)
      all &= sums_[i].admits(got.elements[static_cast<std::int64_t>(i) * got.step]);
    return all;
  }

 private:
  std::int64_t columns_;
  std::vector<Sum> sums_;
};

bool same_bits(const Array<float>& a, const Array<float>& b) {
  for (std::int64_t i = 0; i < a.elements.count(); i += a.step)
    if (bits_of(a.elements[i]) != bits_of(b.elements[i])) return false;
  return true;
}

void test_gradients_in_bfloat16(const GradientCase& c) {
  const auto queries = [&](std::int64_t columns, unsigned seed) { return Array<float>(c.heads, c.q_len, columns, c.step, seed); };
  const auto keys = [&](std::int64_t columns, unsigned seed) { return Array<float>(c.kv_heads, c.kv_len, columns, c.step, seed); };
  const Array<float> query = queries(c.head_dim, 1), grad_output = queries(c.value_dim, 2), output = queries(c.value_dim, 0);
  const Array<float> key = keys(c.head_dim, 3), value = keys(c.value_dim, 4), lse = queries(1, 0);
  Guarded<unsigned char> bits(c.q_len * c.kv_len);
  bits.fill_bits(5);
  const std::int64_t offset = c.kv_len - c.q_len;
  BackwardProblem backward{};
  AttentionProblem& problem = backward.forward = problem_of_sizes<float>(c);
  problem.precision = Precision::bfloat16;
  if (c.is_causal) problem.window_right = 0;
  problem.softcap = c.softcap;
  problem.query_offset.data = &offset;
  problem.query = query.operand_of(c.heads);
  problem.key = key.operand_of(c.kv_heads);
  problem.value = value.operand_of(c.kv_heads);
  problem.output = output.operand_of(c.heads);
  problem.lse = lse.operand_of(c.heads);
  const std::int64_t hidden_key = c.kv_len / 2;  // from every query
  if (c.has_mask) {
    for (std::int64_t i = 0; i < c.q_len; ++i) bits[i * c.kv_len + hidden_key] = 0;
    problem.mask = operand(bits.data(), 1, c.q_len, c.kv_len);
    problem.mask.head_stride = 0;
  }
  Array<float> of_query = queries(c.head_dim, 0), of_key = keys(c.head_dim, 0), of_value = keys(c.value_dim, 0);
  Array<float> query_again = queries(c.head_dim, 0), key_again = keys(c.head_dim, 0), value_again = keys(c.value_dim, 0);
  backward.grad_output = grad_output.operand_of(c.heads);

  const Target& target = active_target();
  const Target plain = with_bfloat16(target, testing_kernels<float>().bfloat16);
  exchange_target(&plain);
  attention_forward(problem, 1, kNoSignal);
  if (c.dropout != 0) {
    problem.dropout_factor = 1 / (1 - c.dropout);
    problem.dropout_limit = static_cast<std::uint32_t>(std::ldexp(c.dropout, 32));
    problem.dropout_seed = 7;
    attention_forward(problem, 1, kNoSignal);
  }
  const auto compute = [&](const Array<float>& q, const Array<float>& k, const Array<float>& v, int threads) {
    backward.grad_query = q.operand_of(c.heads);
    backward.grad_key = k.operand_of(c.kv_heads);
    backward.grad_value = v.operand_of(c.kv_heads);
    attention_gradients(backward, threads, kNoSignal);
  };
  compute(of_query, of_key, of_value, 1);
  problem.l2_bytes = 1;  // a block of keys at a time
  compute(query_again, key_again, value_again, 3);
  const bool agrees = same_bits(of_query, query_again) && same_bits(of_key, key_again) && same_bits(of_value, value_again);
  check(agrees, "the same bits of gradients in bfloat16 with 3 threads and in pieces");
  // Values that only the first or the last rows and keys see must not affect anything else.
  bool hides = true;
  const auto spoil = [&](float& number, float with = NAN) {
    const float before = number;
    number = with;
    compute(query_again, key_again, value_again, 2);
    number = before;
  };
  if (c.has_mask)
    for (float* number : {&key.at(1, hidden_key, 0), &value.at(1, hidden_key, 0)}) {
      spoil(*number);
      hides &= same_bits(of_query, query_again) && same_bits(of_key, key_again) && same_bits(of_value, value_again);
    }
  if (c.is_causal && !c.has_mask && offset == 0 && c.q_len > 1) {
    const std::int64_t last = c.q_len - 1;
    spoil(key.at(0, last, 0));  // seen by the last query
    for (std::int64_t i = 0; i < last; ++i)
      for (std::int64_t d = 0; d < c.head_dim; ++d) hides &= same(of_query.at(0, i, d), query_again.at(0, i, d));
    for (float* number : {&query.at(0, 0, 0), &grad_output.at(0, 0, 0)}) {  // which sees the first key
      spoil(*number);
      for (std::int64_t j = 1; j <= last; ++j) {
        for (std::int64_t d = 0; d < c.head_dim; ++d) hides &= same(of_key.at(0, j, d), key_again.at(0, j, d));
        for (std::int64_t d = 0; d < c.value_dim; ++d) hides &= same(of_value.at(0, j, d), value_again.at(0, j, d));
      }
    }
    // The last query's score of the last key is -inf, and a lane without a row has 0 inf there.
    float& number = query.at(0, last, 0);
    const float before = number;
    number = -1;
    spoil(key.at(0, last, 0), INFINITY);
    number = before;
    for (std::int64_t d = 0; d < c.value_dim; ++d) hides &= value_again.at(0, last, d) == 0;
    for (std::int64_t d = 0; d < c.head_dim; ++d) hides &= key_again.at(0, last, d) == 0;
  }
  check(hides, "NaN affects only the bfloat16 gradients that see it");

  // Weights before and after dropout in float64; the float32 weights before rounding are close to
  // them.
  const Array<float> kept(c.heads, c.q_len, c.kv_len, 1, 0);
  if (c.dropout != 0) {
    problem.weights = kept.operand_of(c.heads);
    attention_forward(problem, 1, kNoSignal);
    problem.weights = {};
  }
  exchange_target(&target);
  const auto r = [](float number) { return static_cast<double>(rounded_to_bfloat16(number)); };
  Sums want_query(c.heads * c.q_len, c.head_dim), want_key(c.kv_heads * c.kv_len, c.head_dim);
  Sums want_value(c.kv_heads * c.kv_len, c.value_dim);
  for (std::int64_t head = 0; head < c.heads; ++head)
    for (std::int64_t i = 0; i < c.q_len; ++i) {
      const std::int64_t kv_head = head / (c.heads / c.kv_heads), row = head * c.q_len + i;
      double delta = 0;
      for (std::int64_t d = 0; d < c.value_dim; ++d) delta += r(grad_output.at(head, i, d)) * output.at(head, i, d);
      for (std::int64_t j = 0; j < c.kv_len; ++j) {
        if (c.is_causal && j > i + offset) continue;
        if (c.has_mask && !bits[i * c.kv_len + j]) continue;
        const std::int64_t kv_row = kv_head * c.kv_len + j;
        double score = 0, grad_weight = 0, of_cap = 1;
        for (std::int64_t d = 0; d < c.head_dim; ++d) score += problem.scale * r(query.at(head, i, d)) * r(key.at(kv_head, j, d));
        if (c.softcap != 0) {
          const double tanh = std::tanh(score / c.softcap);
          score = c.softcap * tanh;
          of_cap = 1 - tanh * tanh;
        }
        for (std::int64_t d = 0; d < c.value_dim; ++d) grad_weight += r(grad_output.at(head, i, d)) * r(value.at(kv_head, j, d));
        const double weight = std::exp(score - lse.at(head, i, 0));
        const double factor = c.dropout == 0 ? 1 : kept.at(head, i, j) == 0 ? 0 : problem.dropout_factor;
        const double grad_score = weight * (factor * grad_weight - delta) * of_cap;
        for (std::int64_t d = 0; d < c.value_dim; ++d) want_value.at(kv_row, d).add(weight * factor, r(grad_output.at(head, i, d)));
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
          want_query.at(row, d).add(problem.scale * grad_score, r(key.at(kv_head, j, d)));
          want_key.at(kv_row, d).add(problem.scale * grad_score, r(query.at(head, i, d)));
        }
      }
    }
  const std::string what = " in bfloat16, q_len " + std::to_string(c.q_len) + ", kv_len " + std::to_string(c.kv_len);
  check(want_query.admit(of_query), "gradient of query" + what);
  check(want_key.admit(of_key), "gradient of key" + what);
  check(want_value.admit(of_value), "gradient of value" + what);
}

}  // namespace

void test_bfloat16() {
  test_dots(false);
  test_dots(true);
  test_attention_in_bfloat16({2, 1, 65, 97, 64, 64, false});
  test_attention_in_bfloat16({2, 1, 40, 300, 17, 33, true});
  test_attention_in_bfloat16({2, 1, 200, 1700, 32, 8, true});
  test_attention_in_bfloat16({2, 1, 33, 3, 5, 4, false});
  test_attention_in_bfloat16({2, 1, 50, 192, 48, 20, true});
  for (const GradientCase& c : std::vector<GradientCase>{
           {1, 1, 65, 97, 64, 64, false, false, 0, 0, 1},
           {1, 1, 100, 100, 17, 33, true, false, 0, 0, 1},
           {6, 2, 33, 200, 40, 24, true, true, 0, 0, 1},
           {2, 2, 47, 1000, 16, 8, false, false, 1.5, 0, 1},
           {2, 1, 5, 3, 5, 4, false, false, 0, 0, 3},
           {1, 1, 49, 49, 32, 32, true, false, 0, 0.25, 2},
           {1, 1, 3, 0, 4, 4, false, false, 0, 0, 1},
       })
    test_gradients_in_bfloat16(c);
}
