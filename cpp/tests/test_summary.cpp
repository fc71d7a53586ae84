// Tests statistics and maps of weights against the same from the forward call's weights, in double,
// over arrays that end at a guard page.
#include "tests.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../dispatch/attention/plan.hpp"
#include "../dispatch/compute.hpp"
#include "arrays.hpp"

namespace {

struct Case {
  std::int64_t batch, heads, kv_heads, q_len, kv_len, head_dim;
  bool is_causal;
  std::int64_t query_offset;
  bool has_mask;
  int step;  // query and key consist of every n-th element of a longer row
  std::int64_t top_count, height, width;
};

// The statistics of one row's weights.
struct RowOracle {
  double entropy = 0, largest = 0, total = 0, square_sum = 0, mean_distance = 0, first_mass = 0, local_mass = 0;
  std::vector<double> falling;
};

constexpr std::int64_t kSinkKeys = 3, kLocalReach = 5;

template <class T>
RowOracle oracle_of(const Array<T>& weights, std::int64_t head, std::int64_t row, std::int64_t position) {
  RowOracle row_oracle;
  for (std::int64_t j = 0; j < weights.columns; ++j) {
    const double weight = static_cast<double>(weights.at(head, row, j));
    const auto distance = static_cast<double>(std::abs(position - j));
    if (weight > 0) row_oracle.entropy -= weight * std::log(weight);
    row_oracle.largest = std::max(row_oracle.largest, weight);
    row_oracle.total += weight;
    row_oracle.square_sum += weight * weight;
    row_oracle.mean_distance += weight * distance;
    if (j < kSinkKeys) row_oracle.first_mass += weight;
    if (distance <= static_cast<double>(kLocalReach)) row_oracle.local_mass += weight;
    row_oracle.falling.push_back(weight);
  }
  std::sort(row_oracle.falling.rbegin(), row_oracle.falling.rend());
  return row_oracle;
}

template <class T>
void test_case(const Case& c) {
  const std::int64_t heads = c.batch * c.heads;
  const auto plain = [](std::int64_t matrices, std::int64_t rows, std::int64_t columns) {
    return Array<T>(matrices, rows, columns, 1, 0);
  };
  const Array<T> query(heads, c.q_len, c.head_dim, c.step, 1);
  const Array<T> key(c.batch * c.kv_heads, c.kv_len, c.head_dim, c.step, 2);
  const Array<T> value = plain(c.batch * c.kv_heads, c.kv_len, 1);
  const Array<T> weights = plain(heads, c.q_len, c.kv_len), output = plain(heads, c.q_len, 1), lse = plain(heads, c.q_len, 1);
  Guarded<unsigned char> bits(c.q_len * c.kv_len);
  bits.fill_bits(3);
  const std::int64_t offset = c.query_offset;

  SummaryProblem summary{};
  AttentionProblem& problem = summary.forward;
  problem.scalar = kScalar<T>;
  problem.window_left = kUnbounded;
  problem.window_right = c.is_causal ? 0 : kUnbounded;
  problem.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  problem.batch = batch_of(c.batch);
  problem.heads = c.heads;
  problem.kv_heads = c.kv_heads;
  problem.q_len = c.q_len;
  problem.kv_len = c.kv_len;
  problem.head_dim = c.head_dim;
  problem.value_dim = 1;
  problem.query = query.operand_of(c.heads);
  problem.key = key.operand_of(c.kv_heads);
  problem.value = value.operand_of(c.kv_heads);
  if (c.has_mask) {
    problem.mask = operand(bits.data(), 1, c.q_len, c.kv_len);
    problem.mask.head_stride = 0;
    problem.mask.batch_strides = nullptr;
  }
  problem.query_offset.data = &offset;
  problem.output = output.operand_of(c.heads);
  problem.lse = lse.operand_of(c.heads);
  problem.weights = weights.operand_of(c.heads);
  attention_forward(problem, 1, kNoSignal);
  problem.weights = {};

  const auto numbers = [&](std::int64_t rows) { return plain(heads, rows, 1); };
  const Array<T> entropy = numbers(c.q_len), largest = numbers(c.q_len), effective_count = numbers(c.q_len);
  const Array<T> mean_distance = numbers(c.q_len), first_mass = numbers(c.q_len), local_mass = numbers(c.q_len);
  const Array<T> previous = numbers(c.q_len), induced = numbers(c.q_len);
  const Array<T> column_sums = numbers(c.kv_len), column_means = numbers(c.kv_len);
  const Array<T> top_weights = plain(heads, c.q_len, c.top_count);
  const Array<std::int64_t> top_keys(heads, c.q_len, c.top_count, 1, 0), induction_keys(heads, c.q_len, 1, 1, 0);
  for (std::int64_t i = 0; i < heads * c.q_len; ++i) induction_keys.elements[i] = c.kv_len ? i * 7 % c.kv_len - 1 : -1;
  summary.statistics[kEntropy] = entropy.operand_of(c.heads);
  summary.statistics[kLargest] = largest.operand_of(c.heads);
  summary.statistics[kEffectiveCount] = effective_count.operand_of(c.heads);
  summary.statistics[kMeanDistance] = mean_distance.operand_of(c.heads);
  summary.statistics[kFirstMass] = first_mass.operand_of(c.heads);
  summary.statistics[kLocalMass] = local_mass.operand_of(c.heads);
  summary.statistics[kPrevious] = previous.operand_of(c.heads);
  summary.statistics[kInduced] = induced.operand_of(c.heads);
  summary.induction_keys = induction_keys.operand_of(c.heads);
  summary.first_keys = kSinkKeys;
  summary.local_reach = kLocalReach;
  summary.top_weights = top_weights.operand_of(c.heads);
  summary.top_keys = top_keys.operand_of(c.heads);
  summary.top_count = c.top_count;
  summary.column_sums = column_sums.operand_of(c.heads);
  summary.column_means = column_means.operand_of(c.heads);
  RowsDone rows{rows_of_all_heads(summary)};
  summarize_attention(summary, 2, kNoSignal, rows);

  const std::string what = std::string(kName<T>) + " statistics, q_len " + std::to_string(c.q_len) + ", kv_len " +
                           std::to_string(c.kv_len) + ", head_dim " + std::to_string(c.head_dim);
  check(rows.done == rows.all && rows.all == heads * c.q_len, "the count of rows of " + what);
  const double eps = 200 * static_cast<double>(std::numeric_limits<T>::epsilon());
  bool rows_agree = true, keys_agree = true, columns_agree = true, maps_agree = true;
  const auto agrees = [&](T got, double wanted, double size = 1) {
    return std::fabs(static_cast<double>(got) - wanted) <= eps * std::max(size, std::fabs(wanted));
  };
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t i = 0; i < c.q_len; ++i) {
      const std::int64_t position = i + c.query_offset, target = induction_keys.at(head, i, 0);
      const RowOracle wanted = oracle_of(weights, head, i, position);
      const auto weight_of = [&](std::int64_t j) {
        return j >= 0 && j < c.kv_len ? static_cast<double>(weights.at(head, i, j)) : 0.0;
      };
      rows_agree = rows_agree && agrees(entropy.at(head, i, 0), wanted.entropy) && agrees(largest.at(head, i, 0), wanted.largest) &&
                   agrees(effective_count.at(head, i, 0), wanted.square_sum > 0 ? wanted.total * wanted.total / wanted.square_sum : 0) &&
                   agrees(mean_distance.at(head, i, 0), wanted.mean_distance) &&
                   agrees(first_mass.at(head, i, 0), wanted.first_mass) && agrees(local_mass.at(head, i, 0), wanted.local_mass) &&
                   agrees(previous.at(head, i, 0), weight_of(position - 1)) && agrees(induced.at(head, i, 0), weight_of(target));
      for (std::int64_t n = 0; n < c.top_count; ++n) {
        const std::int64_t j = top_keys.at(head, i, n);
        const double weight = n < c.kv_len ? wanted.falling[static_cast<std::size_t>(n)] : 0;
        keys_agree = keys_agree && agrees(top_weights.at(head, i, n), weight) && agrees(top_weights.at(head, i, n), weight_of(j)) &&
                     (j >= 0) == (weight > 0);
      }
    }
    for (std::int64_t j = 0; j < c.kv_len; ++j) {
      double sum = 0, seen = 0;
      for (std::int64_t i = 0; i < c.q_len; ++i) {
        sum += static_cast<double>(weights.at(head, i, j));
        const bool is_hidden = (c.is_causal && j > i + c.query_offset) || (c.has_mask && !bits[i * c.kv_len + j]);
        seen += is_hidden ? 0 : 1;
      }
      columns_agree = columns_agree && agrees(column_sums.at(head, j, 0), sum) &&
                      agrees(column_means.at(head, j, 0), seen > 0 ? sum / seen : 0);
    }
  }
  check(rows_agree, "the statistics of rows of " + what);
  check(keys_agree, "the largest weights of " + what);
  check(columns_agree, "the statistics of keys of " + what);

  // A map of a part of the weights that begins and ends within tiles.
  const std::int64_t row_begin = c.q_len / 5, key_begin = c.kv_len / 7;
  const std::int64_t height = std::min(c.height, c.q_len - row_begin), width = std::min(c.width, c.kv_len - key_begin);
  if (height == 0 || width == 0) return;
  for (const Pooling pooling : {Pooling::largest, Pooling::sum, Pooling::mean}) {
    const Array<T> pixels = plain(heads, height, width);
    SummaryProblem mapped{};
    mapped.forward = problem;
    mapped.map = {pixels.operand_of(c.heads), height, width, row_begin, c.q_len, key_begin, c.kv_len, pooling, 0};
    RowsDone map_rows{heads * (c.q_len - row_begin)};
    map_attention(mapped, 3, kNoSignal, map_rows);
    maps_agree = maps_agree && map_rows.done == map_rows.all;
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t r = 0; r < height; ++r)
        for (std::int64_t k = 0; k < width; ++k) {
          const auto from = [&](std::int64_t n, std::int64_t count, std::int64_t parts) { return n * count / parts; };
          double sum = 0, top = 0;
          const std::int64_t i0 = row_begin + from(r, c.q_len - row_begin, height), i1 = row_begin + from(r + 1, c.q_len - row_begin, height);
          const std::int64_t j0 = key_begin + from(k, c.kv_len - key_begin, width), j1 = key_begin + from(k + 1, c.kv_len - key_begin, width);
          for (std::int64_t i = i0; i < i1; ++i)
            for (std::int64_t j = j0; j < j1; ++j) {
              sum += static_cast<double>(weights.at(head, i, j));
              top = std::max(top, static_cast<double>(weights.at(head, i, j)));
            }
          const auto count = static_cast<double>((i1 - i0) * (j1 - j0));
          const double wanted = pooling == Pooling::largest ? top : pooling == Pooling::sum ? sum : sum / count;
          maps_agree = maps_agree && agrees(pixels.at(head, r, k), wanted);
        }
  }
  check(maps_agree, "maps of " + what);
}

}  // namespace

template <class T>
void test_summary() {
  const std::vector<Case> cases = {
      {1, 1, 1, 6, 6, 2, false, 0, false, 1, 3, 6, 6},
      {2, 4, 2, 7, 13, 5, true, 6, false, 1, 20, 3, 4},
      {1, 1, 1, 65, 97, 64, false, 0, false, 1, 8, 9, 10},
      {1, 6, 1, 33, 200, 17, true, 20, true, 1, 5, 33, 200},
      {1, 1, 1, 200, 50, 8, true, -20, false, 2, 1, 7, 50},
      {2, 2, 1, 1, 193, 40, false, 0, true, 3, 4, 1, 11},
      {1, 1, 1, 20, 900, 16, true, 880, false, 1, 2, 1, 1},
      {1, 1, 1, 3, 0, 4, false, 0, false, 1, 2, 1, 1},
      {0, 2, 2, 3, 5, 4, false, 0, false, 1, 2, 1, 1},
  };
  for (const Case& c : cases) test_case<T>(c);
}

template void test_summary<float>();
template void test_summary<double>();
