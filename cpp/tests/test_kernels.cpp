// The kernels without Python, for sanitizers: every runnable target, against sums written out in
// long double, over arrays that end at a guard page.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../dispatch/attention.hpp"
#include "../dispatch/attention_int8.hpp"
#include "../dispatch/matmul.hpp"
#include "../dispatch/merge.hpp"
#include "../dispatch/stage.hpp"
#include "../dispatch/targets.hpp"
#include "guarded.hpp"

namespace {

using namespace regard;

int passed = 0, failed = 0;

void check(bool ok, const std::string& what) {
  (ok ? passed : failed) += 1;
  if (!ok) std::printf("FAILED %s on %s\n", what.c_str(), active_target().name);
}

template <class T>
constexpr Scalar kScalar = sizeof(T) == 4 ? Scalar::float32 : Scalar::float64;
template <class T>
constexpr Element kElement = sizeof(T) == 1   ? Element::boolean
                             : sizeof(T) == 4 ? Element::float32
                                              : Element::float64;
template <class T>
constexpr const char* kName = sizeof(T) == 4 ? "float32" : "float64";
constexpr StopSignal kNoSignal{nullptr, nullptr};

// ---- exp2 ------------------------------------------------------------------------------------

template <class T>
void test_exp2(double allowed_ulps) {
  const Kernels& kernels = kernels_for(active_target(), kScalar<T>);
  constexpr int kCount = 1 << 16;
  const T lowest = sizeof(T) == 4 ? T(-126) : T(-1022);
  std::vector<T> x(kCount), y(kCount);
  double worst = 0;
  for (int sweep = 0; sweep < 16; ++sweep) {
    for (int i = 0; i < kCount; ++i) {
      const double at = (sweep * kCount + i) / double(16 * kCount);
      // Half of the sweeps near zero, where weights that matter lie.
      x[i] = sweep % 2 ? static_cast<T>(8.0 + at * (double(lowest) - 8.0))
                       : static_cast<T>(8.0 - 24.0 * at);
    }
    kernels.exp2(x.data(), y.data(), kCount * static_cast<int>(sizeof(T)) /
                                          active_target().vector_bytes);
    for (int i = 0; i < kCount; ++i) {
      const long double exact = std::exp2(static_cast<long double>(x[i]));
      const long double ulp = std::exp2(std::floor(std::log2(exact))) *
                              static_cast<long double>(std::numeric_limits<T>::epsilon());
      worst = std::max(worst, static_cast<double>(std::fabs(y[i] - exact) / ulp));
    }
  }
  std::printf("  %-9s exp2 %s: at most %.3f ulp\n", active_target().name, kName<T>, worst);
  check(worst <= allowed_ulps, std::string("accuracy of exp2, ") + kName<T>);

  std::vector<T> special(64, T(0));
  special[1] = -std::numeric_limits<T>::infinity();
  special[2] = std::numeric_limits<T>::quiet_NaN();
  special[3] = -std::numeric_limits<T>::max();
  special[4] = T(1);
  special[5] = T(8);
  std::vector<T> result(64);
  kernels.exp2(special.data(), result.data(),
               64 * static_cast<int>(sizeof(T)) / active_target().vector_bytes);
  check(result[0] == T(1) && result[1] == T(0) && std::isnan(result[2]) && result[3] == T(0) &&
            result[4] == T(2) && result[5] == T(256) && !std::signbit(result[1]),
        std::string("special values of exp2, ") + kName<T>);
}

// ---- tanh ------------------------------------------------------------------------------------

template <class T>
void test_tanh(double allowed_ulps) {
  const Kernels& kernels = kernels_for(active_target(), kScalar<T>);
  constexpr int kCount = 1 << 16;
  const long double unit = 2 / std::log(2.0L);  // 2 log2(e)
  std::vector<T> x(kCount), y(kCount);
  const std::int64_t vectors =
      kCount * static_cast<int>(sizeof(T)) / active_target().vector_bytes;
  double worst = 0;
  for (int sweep = 0; sweep < 16; ++sweep) {
    for (int i = 0; i < kCount; ++i) {
      // From far below one to beyond where tanh rounds to one, half of them negative.
      const double size = std::exp2(-20.0 + 26.0 * (sweep * kCount + i) / (16.0 * kCount));
      x[i] = static_cast<T>(i % 2 ? -size : size);
    }
    kernels.tanh_of_log2_units(x.data(), y.data(), vectors);
    for (int i = 0; i < kCount; ++i) {
      const long double exact = std::tanh(static_cast<long double>(x[i]) / unit);
      const long double ulp = std::exp2(std::floor(std::log2(std::fabs(exact)))) *
                              static_cast<long double>(std::numeric_limits<T>::epsilon());
      worst = std::max(worst, static_cast<double>(std::fabs(y[i] - exact) / ulp));
    }
  }
  std::printf("  %-9s tanh %s: at most %.3f ulp\n", active_target().name, kName<T>, worst);
  check(worst <= allowed_ulps, std::string("accuracy of tanh, ") + kName<T>);

  const T infinity = std::numeric_limits<T>::infinity();
  std::vector<T> special(kCount, T(0)), result(kCount);
  special[1] = infinity;
  special[2] = -infinity;
  special[3] = std::numeric_limits<T>::quiet_NaN();
  special[4] = std::numeric_limits<T>::max();
  kernels.tanh_of_log2_units(special.data(), result.data(), vectors);
  check(result[0] == T(0) && result[1] == T(1) && result[2] == T(-1) && std::isnan(result[3]) &&
            result[4] == T(1),
        std::string("special values of tanh, ") + kName<T>);
}

// ---- attention -------------------------------------------------------------------------------

enum class MaskKind { none, boolean, additive };

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

// A contiguous (batch, heads, rows, columns) array, or every step-th column of one.
template <class T>
Operand operand(T* data, std::int64_t heads, std::int64_t rows, std::int64_t columns,
                std::int64_t step = 1) {
  Operand made{};
  made.data = data;
  made.element = kElement<T>;
  made.column_stride = step;
  made.row_stride = columns * step;
  made.head_stride = rows * columns * step;
  made.batch_strides[0] = heads * rows * columns * step;
  return made;
}

// Elements up to the last one that is read: the guard page follows it.
std::int64_t extent(std::int64_t matrices, std::int64_t rows, std::int64_t columns, int step) {
  const std::int64_t elements = matrices * rows * columns;
  return elements == 0 ? 0 : (elements - 1) * step + 1;
}

// With queries and keys in int8, by the CPU's instruction and without, into `again`.
void test_int8(AttentionProblem problem, const Guarded<float>& exact,
               Guarded<float>& again) {
  problem.precision = Precision::int8;
  problem.output.data = again.data();
  problem.weights.data = problem.lse.data = nullptr;
  const std::size_t bytes = static_cast<std::size_t>(again.count()) * sizeof(float);
  std::vector<float> first(static_cast<std::size_t>(again.count()));
  for (const bool forbid : {false, true}) {
    forbid_int8_instruction(forbid);
    attention_forward(problem, 3, kNoSignal);
    // Steps of 1 / 127 of numbers around 1 move scores by some hundredths.
    bool is_near = true;
    for (std::int64_t i = 0; i < again.count(); ++i)
      is_near &= std::fabs(again[i] - exact[i]) <= 0.1f;
    check(is_near, "attention in int8, head_dim " + std::to_string(problem.head_dim));
    if (forbid && bytes > 0)
      check(std::memcmp(first.data(), again.data(), bytes) == 0,
            "int8 with the instruction and without");
    if (bytes > 0) std::memcpy(first.data(), again.data(), bytes);
  }
  forbid_int8_instruction(false);
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

  AttentionProblem problem{};
  problem.scalar = kScalar<T>;
  problem.window_left = c.left;
  problem.window_right = c.is_causal ? 0 : c.right;
  problem.softcap = c.softcap;
  std::vector<double> slopes, sinks;
  for (std::int64_t head = 0; head < c.heads; ++head) {
    slopes.push_back(0.125 * static_cast<double>(head + 1));
    sinks.push_back(static_cast<double>(head) - 1);
  }
  if (c.has_alibi) problem.alibi_slopes = slopes.data();
  if (c.has_sinks) problem.sinks = sinks.data();
  problem.scale = 1 / std::sqrt(double(c.head_dim));
  problem.batch.axes = 1;
  problem.batch.count = problem.batch.sizes[0] = c.batch;
  problem.heads = c.heads;
  problem.kv_heads = c.kv_heads;
  problem.q_len = c.q_len;
  problem.kv_len = c.kv_len;
  problem.head_dim = c.head_dim;
  problem.value_dim = c.value_dim;
  problem.query = operand(query.data(), c.heads, c.q_len, c.head_dim);
  problem.key = operand(key.data(), c.kv_heads, c.kv_len, c.head_dim, c.key_step);
  problem.value = operand(value.data(), c.kv_heads, c.kv_len, c.value_dim, c.key_step);
  if (c.mask == MaskKind::boolean)
    problem.mask = operand(bits.data(), 1, c.q_len, c.kv_len);
  else if (c.mask == MaskKind::additive)
    problem.mask = operand(bias.data(), 1, c.q_len, c.kv_len);
  problem.mask.head_stride = problem.mask.batch_strides[0] = 0;
  problem.output = operand(output.data(), c.heads, c.q_len, c.value_dim);
  problem.weights = operand(weights.data(), c.heads, c.q_len, c.kv_len);
  problem.lse = operand(lse.data(), c.heads, c.q_len, 1);
  std::int64_t offset = c.query_offset;
  problem.query_offset.data = &offset;
  problem.query_offset.element = Element::int64;
  std::int64_t length = std::min(c.key_length, c.kv_len);
  problem.key_lengths.data = &length;
  problem.key_lengths.element = Element::int64;

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
      if (c.mask == MaskKind::additive) {
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

// ---- matmul and stages -----------------------------------------------------------------------

template <class T>
void test_matmul(std::int64_t rows, std::int64_t depth, std::int64_t columns, bool transposed) {
  Guarded<T> a(rows * depth), b(depth * columns), c(rows * columns);
  a.fill_normal(1);
  b.fill_normal(2);
  MatmulProblem problem{};
  problem.scalar = kScalar<T>;
  problem.batch.count = 1;
  problem.rows = rows;
  problem.columns = columns;
  problem.depth = depth;
  problem.a = operand(a.data(), 1, rows, depth);
  problem.b = operand(b.data(), 1, depth, columns);
  if (transposed) {
    problem.a.row_stride = 1;
    problem.a.column_stride = rows;
    problem.b.row_stride = 1;
    problem.b.column_stride = depth;
  }
  problem.c = operand(c.data(), 1, rows, columns);
  matmul(problem, 2, kNoSignal);
  bool agrees = true;
  const long double allowed =
      16 * std::sqrt(static_cast<long double>(depth)) * std::numeric_limits<T>::epsilon();
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      long double wanted = 0;
      for (std::int64_t k = 0; k < depth; ++k)
        wanted += static_cast<long double>(
                      a[i * problem.a.row_stride + k * problem.a.column_stride]) *
                  b[k * problem.b.row_stride + j * problem.b.column_stride];
      agrees &= std::fabs(c[i * columns + j] - wanted) <= allowed;
    }
  check(agrees, std::string("matmul ") + kName<T> + ", " + std::to_string(rows) + " x " +
                    std::to_string(depth) + " x " + std::to_string(columns));
}

template <class T>
void test_stages(std::int64_t rows, std::int64_t columns) {
  Guarded<T> x(rows * columns), y(rows * columns);
  Guarded<unsigned char> bits(rows * columns);
  x.fill_normal(1);
  bits.fill_bits(2);
  StageProblem problem{};
  problem.scalar = kScalar<T>;
  problem.factor = 0.5;
  problem.rows.axes = 1;
  problem.rows.count = problem.rows.sizes[0] = rows;
  problem.columns = columns;
  const auto row_operand = [&](auto* data) {
    Operand made = operand(data, 1, rows, columns);
    made.batch_strides[0] = columns;
    return made;
  };
  problem.input = row_operand(x.data());
  problem.output = row_operand(y.data());
  problem.mask = row_operand(bits.data());

  bool agrees = true;
  problem.stage = Stage::scale;
  run_stage(problem, 2, kNoSignal);
  for (std::int64_t i = 0; i < x.count(); ++i) agrees &= y[i] == x[i] * T(0.5);
  check(agrees, "scale");

  problem.stage = Stage::apply_mask;
  run_stage(problem, 2, kNoSignal);
  for (std::int64_t i = 0; i < x.count(); ++i) agrees &= y[i] == (bits[i] ? x[i] : -INFINITY);
  check(agrees, "apply_mask");

  problem.stage = Stage::softmax;
  run_stage(problem, 2, kNoSignal);
  for (std::int64_t row = 0; row < rows; ++row) {
    long double sum = 0;
    for (std::int64_t i = 0; i < columns; ++i)
      sum += std::exp(static_cast<long double>(x[row * columns + i]));
    for (std::int64_t i = 0; i < columns; ++i)
      agrees &= std::fabs(y[row * columns + i] -
                          std::exp(static_cast<long double>(x[row * columns + i])) / sum) <=
                8 * static_cast<long double>(std::numeric_limits<T>::epsilon());
  }
  check(agrees, "softmax");
}

template <class T>
void test_merge(std::int64_t parts, std::int64_t rows, std::int64_t columns) {
  Guarded<T> states(parts * rows * columns), output(rows * columns);
  Guarded<float> sums(parts * rows), lse(rows);
  states.fill_normal(1);
  sums.fill_normal(2);
  for (std::int64_t row = 0; row < rows; row += 3) sums[row] = -INFINITY;  // the first part's
  std::vector<Operand> outputs, lses;
  const auto rows_operand = [&](auto* data, std::int64_t width) {
    Operand made = operand(data, 1, rows, width);
    made.batch_strides[0] = width;
    return made;
  };
  for (std::int64_t part = 0; part < parts; ++part) {
    outputs.push_back(rows_operand(states.data() + part * rows * columns, columns));
    lses.push_back(rows_operand(sums.data() + part * rows, 1));
  }
  MergeProblem problem{};
  problem.scalar = kScalar<T>;
  problem.rows.axes = 1;
  problem.rows.count = problem.rows.sizes[0] = rows;
  problem.columns = columns;
  problem.parts = parts;
  problem.outputs = outputs.data();
  problem.lses = lses.data();
  problem.output = rows_operand(output.data(), columns);
  problem.lse = rows_operand(lse.data(), 1);
  merge_states(problem, 2, kNoSignal);
  bool agrees = true;
  for (std::int64_t row = 0; row < rows; ++row) {
    long double total = 0;
    for (std::int64_t part = 0; part < parts; ++part)
      total += std::exp(static_cast<long double>(sums[part * rows + row]));
    if (total > 0) agrees &= std::fabs(lse[row] - std::log(total)) <= 1e-6L;
    for (std::int64_t i = 0; i < columns; ++i) {
      long double wanted = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        const long double weight =
            total > 0 ? std::exp(static_cast<long double>(sums[part * rows + row])) / total : 1;
        wanted += weight * states[(part * rows + row) * columns + i];
      }
      agrees &= std::fabs(output[row * columns + i] - wanted) <=
                8 * (parts + 2) * static_cast<long double>(std::numeric_limits<T>::epsilon());
    }
  }
  check(agrees, std::string("merge ") + kName<T> + ", " + std::to_string(parts) + " x " +
                    std::to_string(rows) + " x " + std::to_string(columns));
}

template <class T>
void test_all() {
  test_exp2<T>(1.25);
  test_tanh<T>(3.5);
  const std::vector<Case> cases = {
      {1, 1, 1, 6, 6, 2, 2, false, 0, MaskKind::none, 1},
      {2, 4, 2, 7, 13, 5, 3, true, 6, MaskKind::none, 1},
      {1, 2, 2, 65, 97, 64, 64, false, 0, MaskKind::none, 1},
      {1, 6, 1, 33, 200, 17, 33, true, 20, MaskKind::boolean, 1},
      {1, 3, 3, 50, 100, 32, 8, false, 0, MaskKind::additive, 1},
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
  for (const bool transposed : {false, true})
    for (const std::int64_t size : {1, 3, 16, 49, 130}) {
      test_matmul<T>(size, size + 2, size + 5, transposed);
      test_matmul<T>(2 * size, 300, 1, transposed);
    }
  for (const std::int64_t columns : {1, 5, 16, 255, 256, 257, 1000}) test_stages<T>(3, columns);
  for (const std::int64_t columns : {1, 16, 67, 257, 600})
    for (const std::int64_t rows : {1, 16, 37, 900}) test_merge<T>(3, rows, columns);
  test_merge<T>(1, 5, 8);
}

}  // namespace

int main() {
  for (const TargetRow& row : targets()) {
    if (!row.is_runnable) continue;
    set_target(row.target->name);
    test_all<float>();
    test_all<double>();
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
