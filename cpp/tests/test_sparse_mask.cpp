// Tests attention, gradients and derivatives with a sparse mask against the same with the dense
// mask, bit for bit.
#include "tests.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "../dispatch/compute.hpp"
#include "../dispatch/attention/plan.hpp"
#include "arrays.hpp"

namespace {

enum class Pattern { ranges, bands, scattered, mixed };

struct Case {
  std::int64_t heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  Pattern pattern;
  std::int64_t row_queries, block_keys;  // of the sparse mask's rows and blocks
  bool has_heads;                        // whether the mask has them
  bool is_causal;
};

bool sees(const Case& c, std::int64_t head, std::int64_t query, std::int64_t key) {
  const std::int64_t turn = c.has_heads ? head : 0;
  switch (c.pattern) {
    case Pattern::ranges:
      return key >= (query * 7 + turn * 31) % 90 && key < 60 + query * 3 % 200;
    case Pattern::bands:
      return (query / 32 + key / 64 + turn) % 3 == 0;
    case Pattern::mixed:  // scattered keys and a window
      if (key >= query * 11 % 250 && key < query * 11 % 250 + 40) return true;
      [[fallthrough]];
    case Pattern::scattered:
      return (query * 37 + key * 101 + turn * 11) % 29 == 0 && (key / 100 + query / 100) % 2 == 0;
  }
  return false;
}

// A sparse mask in its owner's layout.
struct Sparse {
  std::vector<std::int64_t> starts;
  std::vector<MaskSpan> spans;
  std::vector<unsigned char> bits;
  SparseMask mask{};

  explicit Sparse(const Case& c) {
    const std::int64_t planes = c.has_heads ? c.heads : 1, rows = (c.q_len + c.row_queries - 1) / c.row_queries;
    mask.bytes_of_query = (c.block_keys + 7) / 8;
    mask.row_queries = c.row_queries;
    mask.query_stride = 1;
    // Two keys before the problem's: a view of a longer mask.
    mask.first_key = 2;
    mask.kv_len = c.kv_len;
    mask.is_scattered = c.pattern == Pattern::scattered || c.pattern == Pattern::mixed;
    for (std::int64_t plane = 0; plane < planes; ++plane) {
      for (std::int64_t row = 0; row < rows; ++row) {
        starts.push_back(static_cast<std::int64_t>(spans.size()));
        for (std::int64_t key = 0; key < c.kv_len; key += c.block_keys) add_block(c, plane, row, key);
      }
      starts.push_back(static_cast<std::int64_t>(spans.size()));
    }
    if (spans.empty()) spans.push_back({});
    mask.spans = spans.data();
    mask.bits = bits.data();
    mask.starts.data = starts.data();
    mask.starts.element = Element::float64;
    mask.starts.head_stride = c.has_heads ? rows + 1 : 0;
    mask.starts.row_stride = mask.starts.column_stride = 1;
  }

 private:
  void add_block(const Case& c, std::int64_t plane, std::int64_t row, std::int64_t key) {
    const std::int64_t end = std::min(key + c.block_keys, c.kv_len);
    std::vector<unsigned char> own(static_cast<std::size_t>(c.row_queries * mask.bytes_of_query));
    bool some = false, every = true;
    for (std::int64_t i = 0; i < c.row_queries && row * c.row_queries + i < c.q_len; ++i)
      for (std::int64_t j = key; j < end; ++j) {
        const bool is_seen = sees(c, plane, row * c.row_queries + i, j);
        some |= is_seen;
        every &= is_seen;
        if (is_seen)
          own[static_cast<std::size_t>(i * mask.bytes_of_query + (j - key) / 8)] |=
              static_cast<unsigned char>(1 << (j - key) % 8);
      }
    if (!some) return;
    const MaskSpan whole{key + mask.first_key, end + mask.first_key, kWholeSpan};
    const bool follows = static_cast<std::int64_t>(spans.size()) > starts.back() && spans.back().end == whole.begin;
    if (every && follows && spans.back().block == kWholeSpan) {
      spans.back().end = whole.end;
    } else if (every) {
      spans.push_back(whole);
    } else {
      const auto block = static_cast<std::int64_t>(bits.size() / own.size());
      spans.push_back({whole.begin, whole.end, block});
      bits.insert(bits.end(), own.begin(), own.end());
    }
  }
};

// The results with one of the masks.
template <class T>
struct Results {
  Array<T> output, weights, lse, grad_query, grad_key, grad_value, moved, tangent_output;

  explicit Results(const Case& c)
      : output(queries(c, c.value_dim)), weights(queries(c, c.kv_len)), lse(queries(c, 1)),
        grad_query(queries(c, c.head_dim)), grad_key(keys(c, c.head_dim)), grad_value(keys(c, c.value_dim)),
        moved(queries(c, c.value_dim)), tangent_output(queries(c, c.value_dim)) {}

  static Array<T> queries(const Case& c, std::int64_t columns) { return Array<T>(c.heads, c.q_len, columns, 1, 0); }
  static Array<T> keys(const Case& c, std::int64_t columns) { return Array<T>(c.kv_heads, c.kv_len, columns, 1, 0); }
};

template <class T>
void test_case(const Case& c) {
  const Array<T> query(c.heads, c.q_len, c.head_dim, 1, 1), grad_output(c.heads, c.q_len, c.value_dim, 1, 2);
  const Array<T> key(c.kv_heads, c.kv_len, c.head_dim, 1, 3), value(c.kv_heads, c.kv_len, c.value_dim, 1, 4);
  Guarded<unsigned char> dense((c.has_heads ? c.heads : 1) * c.q_len * c.kv_len);
  for (std::int64_t i = 0; i < dense.count(); ++i)
    dense[i] = sees(c, i / c.kv_len / c.q_len, i / c.kv_len % c.q_len, i % c.kv_len);
  const Sparse sparse(c);

  const auto compute = [&](bool is_sparse, const Results<T>& results) {
    BackwardProblem backward{};
    AttentionProblem& problem = backward.forward = problem_of_sizes<T>(c);
    if (c.is_causal) problem.window_right = 0;
    std::int64_t offset = c.kv_len - c.q_len;
    problem.query_offset.data = &offset;
    problem.query = query.operand_of(c.heads);
    problem.key = key.operand_of(c.kv_heads);
    problem.value = value.operand_of(c.kv_heads);
    if (is_sparse) {
      problem.sparse_mask = &sparse.mask;
    } else {
      problem.mask = operand(dense.data(), 1, c.q_len, c.kv_len);
      if (!c.has_heads) problem.mask.head_stride = 0;
      problem.mask.batch_strides = nullptr;
    }
    problem.lse = results.lse.operand_of(c.heads);
    problem.weights = results.weights.operand_of(c.heads);
    problem.output = results.output.operand_of(c.heads);
    attention_forward(problem, 1, kNoSignal);
    problem.weights = {};
    problem.output = results.moved.operand_of(c.heads);
    attention_forward(problem, 2, kNoSignal);
    check(std::memcmp(results.output.elements.data(), results.moved.elements.data(),
                      static_cast<std::size_t>(results.output.elements.count()) * sizeof(T)) == 0,
          "the same bits without weights under a mask");
    backward.grad_output = grad_output.operand_of(c.heads);
    backward.grad_query = results.grad_query.operand_of(c.heads);
    backward.grad_key = results.grad_key.operand_of(c.kv_heads);
    backward.grad_value = results.grad_value.operand_of(c.kv_heads);
    attention_gradients(backward, is_sparse ? 3 : 1, kNoSignal);
    TangentProblem tangent{};
    tangent.forward = problem;
    tangent.tangent_query = grad_output.operand_of(c.heads);
    tangent.tangent_query.column_stride = 0;
    tangent.tangent_output = results.tangent_output.operand_of(c.heads);
    attention_tangent(tangent, 1, kNoSignal);
  };
  const Results<T> by_dense(c), by_sparse(c);
  compute(false, by_dense);
  compute(true, by_sparse);
  const std::string what = std::string(" of ") + kName<T> + " under a sparse mask, q_len " + std::to_string(c.q_len) +
                           ", kv_len " + std::to_string(c.kv_len) + ", rows of " + std::to_string(c.row_queries);
  const auto same = [&](const Array<T>& a, const Array<T>& b, const char* name) {
    check(std::memcmp(a.elements.data(), b.elements.data(), static_cast<std::size_t>(a.elements.count()) * sizeof(T)) == 0,
          name + what);
  };
  same(by_dense.output, by_sparse.output, "output");
  same(by_dense.weights, by_sparse.weights, "weights");
  same(by_dense.lse, by_sparse.lse, "lse");
  same(by_dense.grad_query, by_sparse.grad_query, "gradient of query");
  same(by_dense.grad_key, by_sparse.grad_key, "gradient of key");
  same(by_dense.grad_value, by_sparse.grad_value, "gradient of value");
  same(by_dense.tangent_output, by_sparse.tangent_output, "derivative of output");
}

}  // namespace

template <class T>
void test_sparse_mask() {
  const std::vector<Case> cases = {
      {2, 2, 70, 200, 8, 8, Pattern::ranges, 1, 1, true, false},
      {16, 1, 9, 400, 40, 24, Pattern::scattered, 1, 1, false, false},
      {6, 2, 33, 300, 16, 5, Pattern::ranges, 1, 1, false, true},
      {1, 1, 300, 500, 24, 16, Pattern::bands, 32, 64, false, false},
      {4, 2, 130, 400, 8, 12, Pattern::bands, 16, 32, true, true},
      {2, 1, 150, 330, 12, 8, Pattern::scattered, 24, 100, true, false},
      {1, 1, 64, 1700, 8, 8, Pattern::scattered, 7, 13, false, false},
      {1, 1, 2, 3300, 16, 16, Pattern::bands, 128, 128, false, true},
      {2, 2, 1, 700, 8, 8, Pattern::scattered, 3, 40, true, false},
      {8, 1, 1, 900, 64, 32, Pattern::scattered, 1, 1, true, false},
      {4, 2, 2, 500, 32, 48, Pattern::mixed, 1, 1, false, true},
      {8, 2, 40, 600, 24, 24, Pattern::mixed, 1, 1, true, false},
  };
  for (const Case& c : cases) test_case<T>(c);
}

template void test_sparse_mask<float>();
template void test_sparse_mask<double>();
