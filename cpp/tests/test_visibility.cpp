// Visibility by position, including sink tokens and padding, must give the same bits as a bool mask
// that shows the same keys. Keys that no query sees are NaN, and pages with only such keys are
// missing.
#include "tests.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "../dispatch/attention/plan.hpp"
#include "testing.hpp"

namespace {

struct Case {
  std::int64_t heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  std::int64_t left, right, keep_first, query_offset;
  std::int64_t page_rows = 0;                 // 0 if rows are contiguous
  std::vector<std::int64_t> padding = {0, 0};  // one per entry
  bool has_bias = false, has_alibi = false;
};

constexpr std::int64_t kBatch = 2;

bool sees(const Case& c, std::int64_t entry, std::int64_t query, std::int64_t key) {
  const std::int64_t position = query + c.query_offset;
  return key >= c.padding[static_cast<std::size_t>(entry)] &&
         (c.right == kUnbounded || key <= position + c.right) &&
         (c.left == kUnbounded || key >= position - c.left || key < c.keep_first);
}

std::string name_of(const Case& c) {
  return "q_len " + std::to_string(c.q_len) + ", kv_len " + std::to_string(c.kv_len) + ", window " +
         std::to_string(c.left) + " and " + std::to_string(c.right) + ", " +
         std::to_string(c.keep_first) + " sink tokens, pages of " + std::to_string(c.page_rows);
}

// Keys or values, which are NaN if no query sees them; and the same in pages, in reverse order.
template <class T>
struct Stored {
  Stored(const Case& c, std::int64_t dim, unsigned seed, std::int64_t first_evicted,
         std::int64_t evicted)
      : rows(kBatch * c.kv_heads * c.kv_len * dim), pool(pool_size(c, dim, evicted)) {
    rows.fill_normal(seed);
    for (std::int64_t at = 0; at < kBatch * c.kv_heads * c.kv_len; ++at) {
      const std::int64_t entry = at / c.kv_len / c.kv_heads, head = at / c.kv_len % c.kv_heads;
      const std::int64_t key = at % c.kv_len;
      bool is_seen = false;
      for (std::int64_t query = 0; query < c.q_len; ++query) is_seen |= sees(c, entry, query, key);
      T* from = rows.data() + at * dim;
      if (!is_seen) std::fill(from, from + dim, std::numeric_limits<T>::quiet_NaN());
      if (c.page_rows == 0) continue;
      std::int64_t column = key / c.page_rows;
      if (column >= first_evicted && column < first_evicted + evicted) continue;
      if (column >= first_evicted) column -= evicted;
      const std::int64_t page = kBatch * columns(c, evicted) - 1 - (entry * columns(c, evicted) + column);
      std::copy(from, from + dim,
                pool.data() + ((page * c.kv_heads + head) * c.page_rows + key % c.page_rows) * dim);
    }
  }

  // The number of existing pages of an entry.
  static std::int64_t columns(const Case& c, std::int64_t evicted) {
    return c.page_rows == 0 ? 0 : (c.kv_len + c.page_rows - 1) / c.page_rows - evicted;
  }
  static std::int64_t pool_size(const Case& c, std::int64_t dim, std::int64_t evicted) {
    return kBatch * columns(c, evicted) * c.kv_heads * c.page_rows * dim;
  }

  Guarded<T> rows;
  Guarded<T> pool;
};

// Output, weights and lse of the problem, and the output without weights with 1 and 3 threads.
template <class T>
std::vector<std::vector<T>> results_of(AttentionProblem problem) {
  const std::int64_t rows = kBatch * problem.heads * problem.q_len;
  const auto array = [](std::int64_t count) { return std::vector<T>(static_cast<std::size_t>(count)); };
  std::vector<std::vector<T>> results{array(rows * problem.value_dim), array(rows * problem.kv_len),
                                      array(rows), array(rows * problem.value_dim),
                                      array(rows * problem.value_dim)};
  problem.output = operand(results[0].data(), problem.heads, problem.q_len, problem.value_dim);
  problem.weights = operand(results[1].data(), problem.heads, problem.q_len, problem.kv_len);
  problem.lse = operand(results[2].data(), problem.heads, problem.q_len, 1);
  attention_forward(problem, 1, kNoSignal);
  problem.weights.data = problem.lse.data = nullptr;
  for (const int threads : {1, 3}) {
    problem.output.data = results[threads == 1 ? 3 : 4].data();
    attention_forward(problem, threads, kNoSignal);
  }
  return results;
}

template <class T>
bool have_same_bits(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
  bool agree = true;
  for (std::size_t i = 0; i < a.size(); ++i)
    agree &= std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) == 0;
  return agree;
}

PerEntry per_entry(const std::vector<std::int64_t>& numbers) {
  return {numbers.data(), one_axis(numbers.size() == 1 ? 0 : 1)};
}

template <class T>
AttentionProblem problem_of(const Case& c, Guarded<T>& query) {
  AttentionProblem problem = problem_of_sizes<T>(c, kBatch);
  problem.query = operand(query.data(), c.heads, c.q_len, c.head_dim);
  return problem;
}

template <class T>
void test_case(const Case& c) {
  Guarded<T> query(kBatch * c.heads * c.q_len * c.head_dim);
  query.fill_normal(1);
  const std::int64_t first_pages = c.page_rows ? (c.keep_first + c.page_rows - 1) / c.page_rows : 0;
  std::vector<std::int64_t> offset{c.query_offset}, padding = c.padding, evicted{0};
  if (c.page_rows && c.left != kUnbounded) {
    const std::int64_t first_seen = std::min(c.query_offset - c.left, c.kv_len);
    evicted[0] = std::max<std::int64_t>(0, first_seen / c.page_rows - first_pages);
  }
  const Stored<T> key(c, c.head_dim, 2, first_pages, evicted[0]),
      value(c, c.value_dim, 3, first_pages, evicted[0]);
  Guarded<unsigned char> mask(kBatch * c.q_len * c.kv_len);
  for (std::int64_t at = 0; at < mask.count(); ++at)
    mask[at] = sees(c, at / c.kv_len / c.q_len, at / c.kv_len % c.q_len, at % c.kv_len);
  Guarded<T> bias(c.q_len * c.kv_len);
  bias.fill_normal(4);
  for (std::int64_t i = 0; i < bias.count(); i += 5) bias[i] = -INFINITY;
  std::vector<double> slopes;
  for (std::int64_t i = 0; i < kBatch * c.heads; ++i) slopes.push_back(0.01 * static_cast<double>(i + 1));

  AttentionProblem problem = problem_of(c, query);
  problem.query_offset = per_entry(offset);
  problem.key = operand(key.rows.data(), c.kv_heads, c.kv_len, c.head_dim);
  problem.value = operand(value.rows.data(), c.kv_heads, c.kv_len, c.value_dim);
  if (c.has_bias) {
    problem.bias = operand(bias.data(), 1, c.q_len, c.kv_len);
    problem.bias.head_stride = 0;
    problem.bias.batch_strides = nullptr;
  }
  if (c.has_alibi) problem.alibi_slopes = {slopes.data(), 1, one_axis(c.heads)};
  AttentionProblem masked = problem;
  masked.mask = operand(mask.data(), 1, c.q_len, c.kv_len);
  masked.mask.head_stride = 0;
  const auto wanted = results_of<T>(masked);

  problem.window_left = c.left;
  problem.window_right = c.right;
  problem.keep_first = c.keep_first;
  problem.left_padding = per_entry(padding);
  if (c.page_rows == 0) {
    check(have_same_bits(results_of<T>(problem), wanted), std::string(kName<T>) + " by position, " + name_of(c));
    problem.mask = masked.mask;
    check(have_same_bits(results_of<T>(problem), wanted),
          std::string(kName<T>) + " by position and mask, " + name_of(c));
    if (sizeof(T) == 8 || c.padding[0] != 0 || c.padding[1] != 0) return;
    problem.mask.data = nullptr;
    problem.precision = masked.precision = Precision::int8;
    check(have_same_bits(results_of<T>(problem), results_of<T>(masked)), "int8 by position, " + name_of(c));
    return;
  }

  const std::int64_t columns = Stored<T>::columns(c, evicted[0]);
  Guarded<std::int32_t> pages(kBatch * columns);
  for (std::int64_t i = 0; i < pages.count(); ++i)
    pages[i] = static_cast<std::int32_t>(pages.count() - 1 - i);
  const auto in_pages = [&](const Guarded<T>& pool, std::int64_t dim) {
    Operand made = operand(pool.data(), c.kv_heads, c.page_rows, dim);
    made.page_stride = *made.batch_strides;
    made.batch_strides = nullptr;
    return made;
  };
  problem.key = in_pages(key.pool, c.head_dim);
  problem.value = in_pages(value.pool, c.value_dim);
  problem.pages = pages.data();
  problem.pages_stride = columns;
  problem.page_rows = c.page_rows;
  problem.evicted_pages = per_entry(evicted);
  check(have_same_bits(results_of<T>(problem), wanted),
        std::string(kName<T>) + " without the pages between, " + name_of(c));
  if (sizeof(T) == 8 || c.padding[0] != 0 || c.padding[1] != 0) return;
  // The missing keys do not contribute to the mean either: the bits differ, but the results are
  // close.
  problem.precision = Precision::int8;
  const auto rounded = results_of<T>(problem);
  bool is_near = true;
  for (std::size_t i = 0; i < wanted[0].size(); ++i)
    is_near &= std::fabs(rounded[0][i] - wanted[0][i]) <= 0.1;
  check(is_near, "int8 without the pages between, " + name_of(c));
}

// Keys before left_padding are ignored: a call without them, a whole block fewer, has the same
// bits.
void test_padding(std::int64_t q_len, Precision precision) {
  constexpr std::int64_t kPadding = 96;
  const Case c{4, 2, q_len, 300, 32, 24, kUnbounded, 0, 0, 300 - q_len};
  Guarded<float> query(kBatch * c.heads * c.q_len * c.head_dim);
  Guarded<float> key(kBatch * c.kv_heads * c.kv_len * c.head_dim);
  Guarded<float> value(kBatch * c.kv_heads * c.kv_len * c.value_dim);
  query.fill_normal(1);
  key.fill_normal(2);
  value.fill_normal(3);
  AttentionProblem problem = problem_of(c, query);
  problem.precision = precision;
  problem.window_right = c.right;
  problem.key = operand(key.data(), c.kv_heads, c.kv_len, c.head_dim);
  problem.value = operand(value.data(), c.kv_heads, c.kv_len, c.value_dim);
  std::vector<std::int64_t> offset{c.query_offset}, padding{kPadding};
  problem.query_offset = per_entry(offset);
  problem.left_padding = per_entry(padding);
  auto padded = results_of<float>(problem);
  AttentionProblem shorter = problem;
  shorter.left_padding = {};
  shorter.kv_len -= kPadding;
  shorter.key.data = key.data() + kPadding * c.head_dim;
  shorter.value.data = value.data() + kPadding * c.value_dim;
  offset[0] -= kPadding;
  auto wanted = results_of<float>(shorter);
  padded[1].clear();  // of different shapes
  wanted[1].clear();
  check(have_same_bits(padded, wanted), "padding, q_len " + std::to_string(q_len));
}

}  // namespace

template <class T>
void test_visibility() {
  std::size_t turn = 0;
  for (const std::int64_t q_len : {1, 5, 40}) {
    const std::int64_t kv_len = 2000, offset = kv_len - q_len;
    const auto test = [&](Case c) {  // in one piece, and in pages of alternating sizes
      constexpr std::int64_t kPageRows[] = {16, 96, 256};
      test_case<T>(c);
      c.page_rows = kPageRows[turn++ % std::size(kPageRows)];
      test_case<T>(c);
    };
    test({4, 2, q_len, kv_len, 16, 8, 150, 0, 4, offset});                 // far apart
    test({4, 2, q_len, kv_len, 16, 8, 150, 0, 4, offset, 0, {0, 0}, true, true});
    test({2, 2, q_len, kv_len, 16, 8, 1900, 0, 50, offset});               // in one block
    test({4, 1, q_len, kv_len, 17, 5, 1930, 3, 200, offset});              // they meet
    test({4, 2, q_len, kv_len, 16, 8, 700, kUnbounded, 1600, offset, 0, {0, 0}, false, true});
    test({4, 2, q_len, kv_len, 16, 8, 90, 0, 7, offset, 0, {3, 1990}});
    test({4, 2, q_len, kv_len, 16, 8, 90, 0, 7, offset, 0, {200, 9}, true});
    test({4, 2, q_len, kv_len, 16, 8, kUnbounded, 0, 7, offset, 0, {0, 1000}});
    test({4, 2, q_len, kv_len, 16, 8, kUnbounded, kUnbounded, 0, 0, 0, {97, 2000}});
    test({4, 2, q_len, 100, 16, 8, 10, 0, 20, -1});                        // some queries are fully masked
    test({4, 2, q_len, 100, 16, 8, 10, 0, 20, 500});                       // only sink tokens
    if constexpr (sizeof(T) == 4)
      for (const Precision precision : {Precision::full, Precision::int8}) test_padding(q_len, precision);
  }
}

template void test_visibility<float>();
template void test_visibility<double>();
