// Keys and values in pages must give the same bits as contiguous ones, and as int8 the results of
// float64 for the represented numbers. Nothing may be read beyond them: the last page of an entry
// ends at a guard page.
#include "tests.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../dispatch/attention/plan.hpp"
#include "testing.hpp"

namespace {

struct Case {
  std::int64_t heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  std::int64_t page_rows;  // 0 if rows are contiguous
  bool is_int8;
};

// Rows of one kind: as they are stored, the same rows contiguously, and the float32 numbers that
// they represent. `largest` is the largest magnitude of these numbers.
struct Stored {
  Stored(const Case& c, std::int64_t dim, unsigned seed, const std::vector<std::int32_t>& pages)
      : floats(c.is_int8 ? 0 : size(c, dim)), bytes(c.is_int8 ? size(c, dim) : 0),
        scales(c.is_int8 ? size(c, 1) : 0), plain(c.kv_heads * c.kv_len * dim), plain_bytes(c.is_int8 ? plain.count() : 0),
        plain_scales(c.is_int8 ? c.kv_heads * c.kv_len : 0) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    floats.fill_normal(seed);
    scales.fill_normal(seed + 1);
    for (std::int64_t i = 0; i < bytes.count(); ++i)
      bytes[i] = static_cast<std::int8_t>(static_cast<int>(generator() % 255) - 127);
    for (std::int64_t i = 0; i < scales.count(); ++i) scales[i] *= 0.01f;
    for (std::int64_t head = 0; head < c.kv_heads; ++head)
      for (std::int64_t row = 0; row < c.kv_len; ++row) {
        std::int64_t at = head * c.kv_len + row;
        if (c.page_rows)
          at = (pages[static_cast<std::size_t>(row / c.page_rows)] * c.kv_heads + head) * c.page_rows +
               row % c.page_rows;
        if (c.is_int8) plain_scales[head * c.kv_len + row] = scales[at];
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::int64_t to = (head * c.kv_len + row) * dim + d;
          if (c.is_int8) {
            plain_bytes[to] = bytes[at * dim + d];
            plain[to] = bytes[at * dim + d] * scales[at];
            largest = std::max(largest, double(std::abs(plain[to])));
          } else {
            plain[to] = floats[at * dim + d];
          }
        }
      }
  }

  static std::int64_t size(const Case& c, std::int64_t dim) {
    const std::int64_t rows =
        c.page_rows ? (c.kv_len + c.page_rows - 1) / c.page_rows * c.page_rows : c.kv_len;
    return c.kv_heads * rows * dim;
  }

  Guarded<float> floats;
  Guarded<std::int8_t> bytes;
  Guarded<float> scales;
  Guarded<float> plain;
  Guarded<std::int8_t> plain_bytes;
  Guarded<float> plain_scales;
  double largest = 0;
};

// Sums and differences of neighbors, of pairs of these, and so on, as long as pairs divide dim.
void rotate(float* row, std::int64_t dim) {
  for (std::int64_t half = 1; dim % (2 * half) == 0; half *= 2)
    for (std::int64_t d = 0; d < dim; ++d)
      if (d / half % 2 == 0) {
        const float a = row[d], b = row[d + half];
        row[d] = a + b;
        row[d + half] = a - b;
      }
}

// The effect of rounding: scores move by 1.5 eps of the sum of their terms' magnitudes, and weights
// by twice that and 4 eps of themselves.
double tolerance(const Case& c, Guarded<float>& query, const Stored& key, const Stored& value) {
  double largest = 0;
  for (std::int64_t row = 0; row < c.heads * c.q_len; ++row) {
    double size = 0;
    for (std::int64_t d = 0; d < c.head_dim; ++d) size += std::abs(query[row * c.head_dim + d]);
    largest = std::max(largest, size);
  }
  const double moved = 1.5 * largest * key.largest / std::sqrt(double(c.head_dim));
  return 2 * std::numeric_limits<float>::epsilon() * (4 + 2 * moved) * value.largest;
}

void test_case(const Case& c) {
  std::vector<std::int32_t> pages;
  if (c.page_rows)
    for (std::int64_t page = (c.kv_len + c.page_rows - 1) / c.page_rows; page-- > 0;)
      pages.push_back(static_cast<std::int32_t>(page));
  Guarded<float> query(c.heads * c.q_len * c.head_dim), meeting(query.count());
  query.fill_normal(1);
  meeting.fill_normal(1);
  for (std::int64_t row = 0; c.is_int8 && row < c.heads * c.q_len; ++row)
    rotate(meeting.data() + row * c.head_dim, c.head_dim);
  const Stored key(c, c.head_dim, 2, pages), value(c, c.value_dim, 5, pages);
  Guarded<float> plain(c.heads * c.q_len * c.value_dim), wanted(plain.count()), stored(plain.count());

  AttentionProblem problem = problem_of_sizes<float>(c);
  problem.window_right = 0;
  std::int64_t offset = c.kv_len - c.q_len;
  problem.query_offset.data = &offset;
  problem.query = operand(meeting.data(), c.heads, c.q_len, c.head_dim);
  problem.key = operand(key.plain.data(), c.kv_heads, c.kv_len, c.head_dim);
  problem.value = operand(value.plain.data(), c.kv_heads, c.kv_len, c.value_dim);
  problem.output = operand(plain.data(), c.heads, c.q_len, c.value_dim);
  attention_forward(problem, 1, kNoSignal);
  std::memcpy(wanted.data(), plain.data(), static_cast<std::size_t>(plain.count()) * sizeof(float));

  const std::string name = std::string(c.is_int8 ? "int8" : "float32") + " in pages of " +
                           std::to_string(c.page_rows) + ", " + std::to_string(c.kv_len) +
                           " keys of " + std::to_string(c.head_dim);
  problem.query.data = query.data();
  if (c.is_int8) {
    problem.key = operand(key.plain_bytes.data(), c.kv_heads, c.kv_len, c.head_dim);
    problem.value = operand(value.plain_bytes.data(), c.kv_heads, c.kv_len, c.value_dim);
    problem.key.element = problem.value.element = Element::int8;
    problem.key_scales = operand(key.plain_scales.data(), c.kv_heads, c.kv_len, 1);
    problem.value_scales = operand(value.plain_scales.data(), c.kv_heads, c.kv_len, 1);
    problem.output.data = wanted.data();
    attention_forward(problem, 1, kNoSignal);
    const double limit = tolerance(c, meeting, key, value);
    bool is_close = true;
    for (std::int64_t i = 0; i < plain.count(); ++i)
      is_close &= std::abs(double(wanted[i]) - plain[i]) <= limit;
    check(is_close, name + ", compared with the represented numbers");
  }

  const std::int64_t rows = c.page_rows ? c.page_rows : c.kv_len;
  const auto place = [&](Operand& to, auto* data, std::int64_t dim) {
    to = operand(data, c.kv_heads, rows, dim);
    to.page_stride = *to.batch_strides;
    to.batch_strides = nullptr;
  };
  problem.page_rows = c.page_rows;
  problem.pages = c.page_rows ? pages.data() : nullptr;
  if (c.is_int8) {
    place(problem.key, key.bytes.data(), c.head_dim);
    place(problem.value, value.bytes.data(), c.value_dim);
    problem.key.element = problem.value.element = Element::int8;
    place(problem.key_scales, key.scales.data(), 1);
    place(problem.value_scales, value.scales.data(), 1);
  } else {
    place(problem.key, key.floats.data(), c.head_dim);
    place(problem.value, value.floats.data(), c.value_dim);
  }
  problem.output.data = stored.data();
  for (const int threads : {1, 3}) {
    attention_forward(problem, threads, kNoSignal);
    check(std::memcmp(wanted.data(), stored.data(),
                      static_cast<std::size_t>(plain.count()) * sizeof(float)) == 0,
          name);
  }
}

}  // namespace

void test_kv_rows() {
  for (const bool is_int8 : {false, true})
    for (const std::int64_t page_rows : {0, 1, 5, 8, 16, 48, 96, 256})
      for (const std::int64_t kv_len : {1, 16, 97, 500, 1600}) {
        test_case({4, 2, 1, kv_len, 64, 64, page_rows, is_int8});     // decode
        test_case({2, 2, 2, kv_len, 24, 40, page_rows, is_int8});     // decode of copies
        test_case({4, 1, 33, kv_len, 64, 24, page_rows, is_int8});
      }
}
