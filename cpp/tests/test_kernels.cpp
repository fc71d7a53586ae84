// Tests the kernels without Python, for sanitizers: every runnable target, against explicit sums in
// long double, over arrays that end at a guard page.
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "../dispatch/compute.hpp"
#include "tests.hpp"
#include "testing.hpp"
#include "testing_kernels.hpp"

namespace {

// ---- exp -------------------------------------------------------------------------------------

template <class T>
void test_exp(double allowed_ulps) {
  const TestingKernels& kernels = testing_kernels<T>();
  constexpr int kCount = 1 << 16;
  const T lowest = sizeof(T) == 4 ? T(-87.3) : T(-708.3);
  std::vector<T> x(kCount), y(kCount);
  const std::string name = active_target().name;
  const bool has_fma = name != "baseline" && name != "wide";
  double worst = 0;
  for (int sweep = 0; sweep < 16; ++sweep) {
    for (int i = 0; i < kCount; ++i) {
      const double at = (sweep * kCount + i) / double(16 * kCount);
      // Half of the sweeps are near zero, where the significant weights are.
      x[i] = sweep % 2 ? static_cast<T>(8.0 + at * (double(lowest) - 8.0))
                       : static_cast<T>(8.0 - 24.0 * at);
    }
    kernels.exp(x.data(), y.data(), kCount * static_cast<int>(sizeof(T)) /
                                         active_target().vector_bytes);
    for (int i = 0; i < kCount; ++i) {
      const long double exact = std::exp(static_cast<long double>(x[i]));
      const long double ulp = std::exp2(std::floor(std::log2(exact))) *
                              static_cast<long double>(std::numeric_limits<T>::epsilon());
      // log2(e) is rounded, and without fma also its product.
      const long double moved = std::fabs(exact * x[i]) * (has_fma ? 1.5e-8L : 7.5e-8L) /
                                (sizeof(T) == 4 ? 1 : 536870912);
      worst = std::max(worst, static_cast<double>((std::fabs(y[i] - exact) - moved) / ulp));
    }
  }
  std::printf("  %-9s exp %s: at most %.3f ulp\n", active_target().name, kName<T>, worst);
  check(worst <= allowed_ulps, std::string("accuracy of exp, ") + kName<T>);

  std::vector<T> special(64, T(0));
  special[1] = -std::numeric_limits<T>::infinity();
  special[2] = std::numeric_limits<T>::quiet_NaN();
  special[3] = -std::numeric_limits<T>::max();
  special[4] = T(1);
  std::vector<T> result(64);
  kernels.exp(special.data(), result.data(),
               64 * static_cast<int>(sizeof(T)) / active_target().vector_bytes);
  check(result[0] == T(1) && result[1] == T(0) && std::isnan(result[2]) && result[3] == T(0) &&
            std::fabs(result[4] - std::exp(T(1))) <= 3 * std::numeric_limits<T>::epsilon() &&
            !std::signbit(result[1]),
        std::string("special values of exp, ") + kName<T>);
}

// ---- tanh ------------------------------------------------------------------------------------

template <class T>
void test_tanh(double allowed_ulps) {
  const TestingKernels& kernels = testing_kernels<T>();
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

// ---- matmul and stages -----------------------------------------------------------------------

template <class T>
void test_matmul(std::int64_t rows, std::int64_t depth, std::int64_t columns, bool transposed) {
  Guarded<T> a(rows * depth), b(depth * columns), c(rows * columns);
  a.fill_normal(1);
  b.fill_normal(2);
  MatmulProblem problem{};
  problem.scalar = kScalar<T>;
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
  matrix_product(problem, 2, kNoSignal);
  bool agrees = true;
  const long double allowed = std::sqrt(static_cast<long double>(depth)) * std::numeric_limits<T>::epsilon();
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      long double wanted = 0, magnitude = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        const long double product = static_cast<long double>(a[i * problem.a.row_stride + k * problem.a.column_stride]) *
                                    b[k * problem.b.row_stride + j * problem.b.column_stride];
        wanted += product;
        magnitude += std::fabs(product);
      }
      agrees &= std::fabs(c[i * columns + j] - wanted) <= allowed * magnitude;
    }
  check(agrees, std::string("matmul ") + kName<T> + ", " + std::to_string(rows) + " x " +
                    std::to_string(depth) + " x " + std::to_string(columns));
}

// b in 16 or 8 bits, transposed like a layer's weight or not, gives the same bits as its floats.
template <class From>
void test_narrow_matmul(Element element, std::int64_t rows, std::int64_t depth, std::int64_t columns,
                        bool transposed) {
  Guarded<float> a(rows * depth), wide(depth * columns), c(rows * columns), wanted(rows * columns);
  const std::int64_t groups = (depth + kScaleGroup - 1) / kScaleGroup;
  Guarded<float> scales(groups * columns);
  Guarded<From> narrow(depth * columns);
  a.fill_normal(1);
  wide.fill_normal(2);
  scales.fill_normal(3);
  const std::int64_t row_stride = transposed ? 1 : columns, column_stride = transposed ? depth : 1;
  for (std::int64_t k = 0; k < depth; ++k)
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t at = k * row_stride + j * column_stride;
      if constexpr (sizeof(From) == 1) {
        narrow[at] = static_cast<std::int8_t>(at * 37 % 255 - 127);
        wide[at] = static_cast<float>(narrow[at]) * scales[k / kScaleGroup * columns + j];
      } else {
        // A bfloat16 is the upper half of a float.
        std::uint32_t bits;
        std::memcpy(&bits, &wide[at], 4);
        narrow[at] = static_cast<From>(bits >> 16);
        bits &= 0xffff0000u;
        std::memcpy(&wide[at], &bits, 4);
      }
    }
  MatmulProblem problem{};
  problem.scalar = Scalar::float32;
  problem.rows = rows;
  problem.columns = columns;
  problem.depth = depth;
  problem.a = operand(a.data(), 1, rows, depth);
  problem.b = operand(wide.data(), 1, depth, columns);
  problem.b.row_stride = row_stride;
  problem.b.column_stride = column_stride;
  problem.c = operand(wanted.data(), 1, rows, columns);
  matrix_product(problem, 2, kNoSignal);
  problem.b.data = narrow.data();
  problem.b.element = element;
  if (sizeof(From) == 1) problem.scales = operand(scales.data(), 1, groups, columns);
  problem.c = operand(c.data(), 1, rows, columns);
  matrix_product(problem, 2, kNoSignal);
  check(std::memcmp(c.data(), wanted.data(), static_cast<std::size_t>(rows * columns) * 4) == 0,
        std::string(sizeof(From) == 1 ? "matmul int8, " : "matmul bfloat16, ") + std::to_string(rows) + " x " +
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
  problem.rows = batch_of(rows);
  problem.columns = columns;
  const auto row_operand = [&](auto* data) {
    Operand made = operand(data, 1, rows, columns);
    made.batch_strides = one_axis(columns);
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
    made.batch_strides = one_axis(width);
    return made;
  };
  for (std::int64_t part = 0; part < parts; ++part) {
    outputs.push_back(rows_operand(states.data() + part * rows * columns, columns));
    lses.push_back(rows_operand(sums.data() + part * rows, 1));
  }
  MergeProblem problem{};
  problem.scalar = kScalar<T>;
  problem.rows = batch_of(rows);
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

// Results must be within half a step of each row, rotated by the definition: the signs in column i
// are the parities of i & j. The last row is not finite.
void test_quantize(std::int64_t rows, std::int64_t columns, bool rotates) {
  Guarded<float> from(rows * columns), scales(rows);
  Guarded<std::int8_t> to(rows * columns);
  from.fill_normal(1);
  from[rows * columns - 1] = NAN;
  const bool are_held = quantize_rows(
      {from.data(), Element::int8, to.data(), scales.data(), rows, columns, rotates}, 2, kNoSignal);
  const std::int64_t group = rotates ? columns & -columns : 1;
  bool agrees = !are_held && std::isnan(scales[rows - 1]);
  for (std::int64_t i = 0; i < (rows - 1) * columns; ++i) {
    const std::int64_t in_group = i % columns % group;
    long double wanted = 0;
    for (std::int64_t j = 0; j < group; ++j)
      wanted += (__builtin_parityll(static_cast<unsigned long long>(in_group & j)) ? -1 : 1) *
                static_cast<long double>(from[i - in_group + j]) / group;
    const long double scale = scales[i / columns];
    agrees &= std::fabs(to[i] * scale - wanted) <= 0.5001L * scale;
    agrees &= std::fabs(wanted) <= 127.001L * scale;
  }
  check(agrees, "quantize " + std::to_string(rows) + " x " + std::to_string(columns));
}

// Stores rows of two entries in float16 pages in any order. The error is at most half a unit in the
// last place, no byte beyond the rows changes, and one number that is too large is detected.
void test_storing(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kEntries = 2, kHeads = 3, kPageRows = 16;
  const std::int64_t starts[] = {5, 0}, counts[] = {rows, rows / 2};
  const std::int64_t table_columns = (5 + rows + kPageRows - 1) / kPageRows, pages = kEntries * table_columns;
  const Kernels& kernels = kernels_for(active_target(), Scalar::float32);
  Guarded<float> from(kEntries * kHeads * rows * columns), back(columns);
  Guarded<std::uint16_t> to(pages * kHeads * kPageRows * columns);
  Guarded<std::int32_t> table(pages);
  from.fill_normal(1);
  for (std::int64_t i = 0; i < to.count(); ++i) to[i] = 0x7e01;
  for (std::int64_t i = 0; i < pages; ++i) table[i] = static_cast<std::int32_t>(pages - 1 - i);
  StoreProblem problem{};
  problem.entries = kEntries;
  problem.heads = kHeads;
  problem.columns = columns;
  problem.most_rows = rows;
  problem.starts = starts;
  problem.counts = counts;
  problem.pages = table.data();
  problem.pages_stride = table_columns;
  problem.page_rows = kPageRows;
  problem.from = {from.data(), Element::float32, kHeads * rows * columns, rows * columns, columns};
  problem.to = {to.data(), Element::float16, kHeads * kPageRows * columns, kPageRows * columns, columns};
  bool agrees = !store_rows(problem, 2);
  std::int64_t written = 0;
  for (std::int64_t entry = 0; entry < kEntries; ++entry)
    for (std::int64_t head = 0; head < kHeads; ++head)
      for (std::int64_t row = 0; row < counts[entry]; ++row) {
        const std::int64_t at = starts[entry] + row;
        const std::int64_t page = table[entry * table_columns + at / kPageRows];
        const std::int64_t to_row = (page * kHeads + head) * kPageRows + at % kPageRows;
        kernels.rows.convert(Element::float16, Element::float32, to.data() + to_row * columns, back.data(),
                            columns);
        for (std::int64_t i = 0; i < columns; ++i) {
          const float wanted = from[((entry * kHeads + head) * rows + row) * columns + i];
          agrees &= std::fabs(back[i] - wanted) <= std::fabs(wanted) * 0x1p-11f + 0x1p-25f;
        }
        written += columns;
      }
  for (std::int64_t i = 0; i < to.count(); ++i) written += to[i] == 0x7e01;
  agrees &= written == to.count();
  from[rows * columns - 1] = -65520;
  agrees &= store_rows(problem, 2);
  check(agrees, "storing " + std::to_string(rows) + " x " + std::to_string(columns));
}

template <class T>
void test_all() {
  test_exp<T>(1.25);
  test_tanh<T>(3.5);
  test_attention<T>();
  test_gradients<T>();
  test_score_options<T>();
  test_sparse_mask<T>();
  test_summary<T>();
  test_visibility<T>();
  for (const bool transposed : {false, true})
    for (const std::int64_t size : {1, 3, 16, 49, 130}) {
      test_matmul<T>(size, size + 2, size + 5, transposed);
      test_matmul<T>(2 * size, 300, 1, transposed);
    }
  if constexpr (sizeof(T) == 4) {
    for (const bool transposed : {false, true})
      for (const std::int64_t rows : {1, 2, 4, 8, 30})
        for (const std::int64_t depth : {1, 63, 64, 130, 200})
          for (const std::int64_t columns : {1, 16, 65, 130}) {
            test_narrow_matmul<std::int8_t>(Element::int8, rows, depth, columns, transposed);
            test_narrow_matmul<std::uint16_t>(Element::bfloat16, rows, depth, columns, transposed);
          }
  }
  for (const std::int64_t columns : {1, 5, 16, 255, 256, 257, 1000}) test_stages<T>(3, columns);
  for (const std::int64_t columns : {1, 16, 67, 257, 600})
    for (const std::int64_t rows : {1, 16, 37, 900}) test_merge<T>(3, rows, columns);
  test_merge<T>(1, 5, 8);
}

}  // namespace

// Tests the named targets, or all that run here.
int main(int count, char** arguments) {
  std::set<std::string> named(arguments + 1, arguments + count);
  const bool tests_all = named.empty();
  test_cpu_features();
  test_page_table();
  for (const TargetRow& row : targets()) {
    if (!row.is_runnable || !(tests_all || named.erase(row.target->name))) continue;
    set_target(row.target->name);
    test_all<float>();
    test_all<double>();
    for (const bool rotates : {false, true})
      for (const std::int64_t columns : {1, 2, 4, 7, 8, 16, 24, 32, 40, 64, 96, 128, 256, 1024})
        test_quantize(5, columns, rotates);
    test_quantize(2000, 96, true);
    for (const std::int64_t columns : {1, 15, 16, 40, 70'000}) test_storing(7, columns);
    test_bfloat16();
    test_kv_rows();
    test_fewer_bits();
  }
  for (const std::string& name : named) {
    std::printf("no target %s runs here\n", name.c_str());
    ++failed;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
