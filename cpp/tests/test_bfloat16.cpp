// Products of bfloat16. The plain arithmetic is compared with a model that computes number by number, and with the
// instruction if the CPU has it. Attention computed by the plain arithmetic is compared with attention to rounded arrays.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../dispatch/attention/plan.hpp"
#include "../dispatch/cpu_features.hpp"
#include "testing.hpp"
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

// Of any exponent where `is_wild`, NaN, infinity and subnormal numbers among them, or near 1.
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
  // The baseline rounds a product before it adds it, which shows where the product is out of range.
  const bool fuses = active_target().name != std::string("baseline");
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

void test_attention_in_bfloat16(std::int64_t q_len, std::int64_t kv_len, std::int64_t head_dim, std::int64_t value_dim,
                                bool is_causal) {
  Guarded<float> query(2 * q_len * head_dim), key(kv_len * head_dim), value(kv_len * value_dim);
  Guarded<float> exact(2 * q_len * value_dim), output(exact.count()), again(exact.count());
  query.fill_normal(1);
  key.fill_normal(2);
  value.fill_normal(3);
  AttentionProblem problem{};
  problem.scalar = Scalar::float32;
  problem.precision = Precision::bfloat16;
  problem.window_left = kUnbounded;
  problem.window_right = is_causal ? 0 : kUnbounded;
  problem.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const std::int64_t offset = 0;
  problem.query_offset.data = &offset;
  problem.batch = batch_of(1);
  problem.heads = 2;
  problem.kv_heads = 1;
  problem.q_len = q_len;
  problem.kv_len = kv_len;
  problem.head_dim = head_dim;
  problem.value_dim = value_dim;
  problem.query = operand(query.data(), 2, q_len, head_dim);
  problem.key = operand(key.data(), 1, kv_len, head_dim);
  problem.value = operand(value.data(), 1, kv_len, value_dim);
  problem.output = operand(output.data(), 2, q_len, value_dim);

  const Target& target = active_target();
  const Target plain = with_bfloat16(target, testing_kernels<float>().bfloat16);
  exchange_target(&plain);
  attention_forward(problem, 1, kNoSignal);
  problem.output.data = again.data();
  attention_forward(problem, 3, kNoSignal);
  // Keys and values as they are stored in bfloat16: these are read where they lie, or copied.
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
  // A value that is NaN shows in the rows that see it, and in no bit of others.
  Guarded<float> of_nan(output.count());
  const std::int64_t seen_from = std::min(q_len, kv_len) - 1;
  const float before = value[seen_from * value_dim];
  value[seen_from * value_dim] = NAN;
  problem.output.data = of_nan.data();
  attention_forward(problem, 1, kNoSignal);
  value[seen_from * value_dim] = before;
  exchange_target(&target);
  bool hides = true;
  for (std::int64_t i = 0; i < of_nan.count(); ++i) {
    const bool sees = (!is_causal || i / value_dim % q_len >= seen_from) && i % value_dim == 0;
    hides &= sees ? of_nan[i] != of_nan[i] : bits_of(of_nan[i]) == bits_of(output[i]);
  }
  check(hides, "a NaN in bfloat16 shows only where it is seen");
  const std::size_t bytes = static_cast<std::size_t>(output.count()) * sizeof(float);
  check(bytes == 0 || std::memcmp(output.data(), again.data(), bytes) == 0, "the same bits in bfloat16 with 3 threads");

  check(bytes == 0 || std::memcmp(output.data(), of_stored.data(), bytes) == 0,
        "the same bits of arrays that are stored in bfloat16");

  float largest = 0;
  for (Guarded<float>* array : {&query, &key, &value})
    for (std::int64_t i = 0; i < array->count(); ++i) (*array)[i] = rounded_to_bfloat16((*array)[i]);
  for (std::int64_t i = 0; i < value.count(); ++i) largest = std::max(largest, std::fabs(value[i]));
  problem.precision = Precision::full;
  problem.output.data = exact.data();
  attention_forward(problem, 1, kNoSignal);
  bool is_near = true, is_rounded = false;
  // What rounding the weights costs, 2^-9 of each, and sums in another order.
  for (std::int64_t i = 0; i < exact.count(); ++i) {
    is_near &= std::fabs(output[i] - exact[i]) <= largest / 256;
    is_rounded |= std::fabs(output[i] - exact[i]) > largest * 1e-6f;
  }
  check(is_rounded, "weights that are rounded to bfloat16");
  check(is_near, "attention in bfloat16, q_len " + std::to_string(q_len) + ", kv_len " + std::to_string(kv_len));
}

}  // namespace

void test_bfloat16() {
  test_dots(false);
  test_dots(true);
  test_attention_in_bfloat16(65, 97, 64, 64, false);
  test_attention_in_bfloat16(40, 300, 17, 33, true);
  test_attention_in_bfloat16(200, 1700, 32, 8, true);
  test_attention_in_bfloat16(33, 3, 5, 4, false);
  test_attention_in_bfloat16(50, 192, 48, 20, true);
}
