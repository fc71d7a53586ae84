// Tests rows in float8 and in 4 bits: rounding follows the definitions, attention agrees with
// float64 attention to the represented numbers, and the bits are the same for few and many queries.
// Pages end at a guard page.
#include "tests.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../dispatch/attention/plan.hpp"
#include "../dispatch/compute.hpp"
#include "testing.hpp"

namespace {

constexpr std::int64_t kGroup = kGroupOfFourBits;

double number_of_float8(std::uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const double magnitude = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return byte & 128 ? -magnitude : magnitude;
}

double number_of_float16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// Every float8 byte, the numbers halfway between two of them, and the neighbors of these.
void test_rounding_to_float8() {
  std::vector<float> from;
  std::vector<int> wanted;
  const auto expect = [&](double number, int byte) {
    for (const int sign : {0, 128}) {
      from.push_back(static_cast<float>(sign ? -number : number));
      wanted.push_back(byte | sign);
    }
  };
  for (int byte = 0; byte < 0x7e; ++byte) {
    const double number = number_of_float8(static_cast<std::uint8_t>(byte));
    const double next = number_of_float8(static_cast<std::uint8_t>(byte + 1)), halfway = (number + next) / 2;
    expect(number, byte);
    expect(halfway, byte % 2 ? byte + 1 : byte);
    expect(std::nextafter(static_cast<float>(halfway), 0.0f), byte);
    expect(std::nextafter(static_cast<float>(halfway), 1e9f), byte + 1);
  }
  expect(448, 0x7e);
  expect(464, 0x7e);
  const auto columns = static_cast<std::int64_t>(from.size());
  Guarded<float> rows(columns);
  Guarded<std::uint8_t> to(columns);
  std::copy(from.begin(), from.end(), rows.data());
  const QuantizeProblem problem{rows.data(), Element::float8, to.data(), nullptr, 1, columns, false};
  check(quantize_rows(problem, 1, kNoSignal) && std::equal(wanted.begin(), wanted.end(), to.data()), "round to float8");
  for (const float beyond : {464.1f, -1e30f, INFINITY, NAN}) {
    rows[3] = beyond;
    check(!quantize_rows(problem, 1, kNoSignal), "refuse " + std::to_string(beyond) + " in float8");
  }
}

// Rounds to the nearest of 16 numbers from the minimum on. The minimum is the smallest number, up
// to its rounding.
void test_rounding_to_four_bits(std::int64_t rows, std::int64_t columns) {
  Guarded<float> from(rows * columns);
  Guarded<std::uint8_t> to(rows * columns / 2);
  Guarded<std::uint16_t> scales(2 * rows * columns / kGroup);
  from.fill_normal(3);
  for (std::int64_t i = 0; i < kGroup; ++i) from[i] = 3.1f;  // equal numbers
  const QuantizeProblem problem{from.data(), Element::q4_1, to.data(), scales.data(), rows, columns, false};
  bool agrees = quantize_rows(problem, 2, kNoSignal);
  for (std::int64_t group = 0; group < rows * columns / kGroup; ++group) {
    const float* const x = from.data() + group * kGroup;
    const double scale = number_of_float16(scales[2 * group]), minimum = number_of_float16(scales[2 * group + 1]);
    const auto [least, most] = std::minmax_element(x, x + kGroup);
    agrees &= std::fabs(minimum - *least) <= std::fabs(*least) * 0x1p-11;
    agrees &= std::fabs(scale - (*most - minimum) / 15) <= scale * 0x1p-10;
    for (std::int64_t i = 0; i < kGroup; ++i) {
      const int byte = to[(group * kGroup) / 2 + i % 16], integer = i < 16 ? byte & 15 : byte >> 4;
      const double nearest = scale > 0 ? std::clamp((x[i] - minimum) / scale, 0.0, 15.0) : 0;
      agrees &= std::fabs(integer - nearest) <= 0.5 + 1e-5;
    }
  }
  check(agrees, "round " + std::to_string(rows) + " x " + std::to_string(columns) + " to 4 bits");
  for (const float beyond : {-65520.0f, 1e6f, INFINITY, NAN}) {
    from[rows * columns - 1] = beyond;
    check(!quantize_rows(problem, 2, kNoSignal), "refuse " + std::to_string(beyond) + " in 4 bits");
  }
}

struct Case {
  std::int64_t heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  std::int64_t page_rows;
  Element element;
};

// Rows of random bytes in pages, and the contiguous numbers that they represent.
struct Stored {
  Stored(const Case& c, std::int64_t dim, unsigned seed)
      : is_float8(c.element == Element::float8), pages((c.kv_len + c.page_rows - 1) / c.page_rows),
        items(is_float8 ? dim : dim / 2), of_row(is_float8 ? 1 : 2 * dim / kGroup),
        bytes(c.kv_heads * pages * c.page_rows * items), fixed(is_float8 ? c.kv_heads : 0),
        scales(is_float8 ? 0 : c.kv_heads * pages * c.page_rows * of_row), numbers(c.kv_heads * c.kv_len * dim) {
    std::mt19937 generator(seed);
    for (std::int64_t i = 0; i < bytes.count(); ++i) {
      bytes[i] = static_cast<std::uint8_t>(generator());
      if (is_float8 && (bytes[i] & 127) > 90) bytes[i] &= 0x9f;
    }
    // About 0.1 and -0.75, as float16.
    for (std::int64_t i = 0; i < scales.count(); ++i)
      scales[i] = static_cast<std::uint16_t>((i % 2 ? 0xba00 : 0x2e00) + generator() % 300);
    for (std::int64_t head = 0; head < fixed.count(); ++head) fixed[head] = 0.3f * static_cast<float>(head + 1);
    for (std::int64_t head = 0; head < c.kv_heads; ++head)
      for (std::int64_t row = 0; row < c.kv_len; ++row) {
        const std::int64_t page = pages - 1 - row / c.page_rows;
        const std::int64_t at = (page * c.kv_heads + head) * c.page_rows + row % c.page_rows;
        for (std::int64_t d = 0; d < dim; ++d)
          numbers[(head * c.kv_len + row) * dim + d] = is_float8 ? fixed[head] * number_of_float8(bytes[at * items + d])
                                                                 : of_group(at, d);
      }
    // Kernels read 2^-8 of the numbers.
    for (std::int64_t head = 0; head < fixed.count(); ++head) fixed[head] *= 256;
  }

  double of_group(std::int64_t row, std::int64_t d) {
    const std::int64_t group = d / kGroup, i = d % kGroup;
    const int byte = bytes[row * items + group * 16 + i % 16], integer = i < 16 ? byte & 15 : byte >> 4;
    return integer * number_of_float16(scales[row * of_row + 2 * group]) +
           number_of_float16(scales[row * of_row + 2 * group + 1]);
  }

  void place(const Case& c, Operand& rows, Operand& of_rows) {
    rows = {bytes.data(), c.element, c.page_rows * items, items, 1, nullptr, c.kv_heads * c.page_rows * items};
    if (is_float8) {
      of_rows = {fixed.data(), Element::float32, 1, 0, 1, nullptr, 0};
    } else {
      const std::int64_t groups = of_row / 2;
      of_rows = {scales.data(), Element::float32, c.page_rows * groups, groups, 1, nullptr,
                 c.kv_heads * c.page_rows * groups};
    }
  }

  bool is_float8;
  std::int64_t pages, items, of_row;
  Guarded<std::uint8_t> bytes;
  Guarded<float> fixed;
  Guarded<std::uint16_t> scales;
  Guarded<double> numbers;
};

// With 4 bits, queries are rounded to 32767 steps: half a step moves a score by the sum of a key's
// magnitudes.
double tolerance(const Case& c, Guarded<float>& query, Stored& key, Stored& value) {
  double sizes = 0, largest = 0, of_value = 0, most = 0;
  for (std::int64_t i = 0; i < key.numbers.count(); i += c.head_dim) {
    double size = 0;
    for (std::int64_t d = 0; d < c.head_dim; ++d) {
      size += std::fabs(key.numbers[i + d]);
      largest = std::max(largest, std::fabs(key.numbers[i + d]));
    }
    sizes = std::max(sizes, size);
  }
  for (std::int64_t i = 0; i < query.count(); ++i) most = std::max(most, double(std::fabs(query[i])));
  for (std::int64_t i = 0; i < value.numbers.count(); ++i) of_value = std::max(of_value, std::fabs(value.numbers[i]));
  const double eps = std::numeric_limits<float>::epsilon();
  // Sums of integers are up to twice as far from 0 as the numbers are, and minimums compensate for
  // that.
  double moved = 4 * eps * most * sizes;
  if (!key.is_float8) moved += most * (sizes + double(c.head_dim) * largest * eps) / 65534;
  moved /= std::sqrt(double(c.head_dim));
  return (2 * std::expm1(moved) + 16 * eps) * of_value;
}

void test_case(const Case& c) {
  Stored key(c, c.head_dim, 1), value(c, c.value_dim, 2);
  std::vector<std::int32_t> pages;
  for (std::int64_t page = key.pages; page-- > 0;) pages.push_back(static_cast<std::int32_t>(page));
  Guarded<float> query(c.heads * c.q_len * c.head_dim);
  query.fill_normal(4);
  Guarded<double> wide(query.count()), exact(c.heads * c.q_len * c.value_dim);
  for (std::int64_t i = 0; i < query.count(); ++i) wide[i] = query[i];
  AttentionProblem oracle = problem_of_sizes<double>(c);
  oracle.query = operand(wide.data(), c.heads, c.q_len, c.head_dim);
  oracle.key = operand(key.numbers.data(), c.kv_heads, c.kv_len, c.head_dim);
  oracle.value = operand(value.numbers.data(), c.kv_heads, c.kv_len, c.value_dim);
  oracle.output = operand(exact.data(), c.heads, c.q_len, c.value_dim);
  attention_forward(oracle, 1, kNoSignal);

  Guarded<float> output(exact.count()), alone(c.heads * c.value_dim);
  AttentionProblem problem = problem_of_sizes<float>(c);
  problem.query = operand(query.data(), c.heads, c.q_len, c.head_dim);
  problem.output = operand(output.data(), c.heads, c.q_len, c.value_dim);
  key.place(c, problem.key, problem.key_scales);
  value.place(c, problem.value, problem.value_scales);
  problem.are_keys_upright = true;
  problem.page_rows = c.page_rows;
  problem.pages = pages.data();
  const std::string name = std::string(key.is_float8 ? "float8" : "4 bits") + " in pages of " +
                           std::to_string(c.page_rows) + ", " + std::to_string(c.kv_len) + " keys of " +
                           std::to_string(c.head_dim) + ", values of " + std::to_string(c.value_dim);
  attention_forward(problem, 2, kNoSignal);
  const double limit = tolerance(c, query, key, value);
  bool is_close = true;
  for (std::int64_t i = 0; i < exact.count(); ++i) is_close &= std::fabs(output[i] - exact[i]) <= limit;
  check(is_close, name);
  if (c.q_len == 1) return;
  // The first query of each head in a separate call, which decodes.
  AttentionProblem one = problem;
  one.q_len = 1;
  one.query = operand(query.data(), c.heads, c.q_len, c.head_dim);
  one.output = operand(alone.data(), c.heads, 1, c.value_dim);
  attention_forward(one, 1, kNoSignal);
  bool is_same = true;
  for (std::int64_t head = 0; head < c.heads; ++head)
    is_same &= std::memcmp(alone.data() + head * c.value_dim, output.data() + head * c.q_len * c.value_dim,
                           static_cast<std::size_t>(c.value_dim) * sizeof(float)) == 0;
  check(is_same, name + ": one query like many");
}

}  // namespace

void test_fewer_bits() {
  test_rounding_to_float8();
  for (const std::int64_t columns : {32, 96, 128}) test_rounding_to_four_bits(7, columns);
  for (const Element element : {Element::float8, Element::q4_1})
    for (const std::int64_t page_rows : {8, 16, 48, 192})
      for (const std::int64_t kv_len : {1, 16, 97, 500, 1600}) {
        test_case({2, 2, 40, kv_len, 64, 64, page_rows, element});
        test_case({4, 2, 40, kv_len, 32, 96, page_rows, element});
        test_case({4, 1, 12, kv_len, 128, 32, page_rows, element});
        test_case({8, 1, 5, kv_len, 160, 128, page_rows, element});
      }
}
