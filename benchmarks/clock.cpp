// Measures the processor's clock frequency during multiplications: with fused multiply-adds only,
// and with the loads that a matrix product needs in addition (AVX-512).
//
//   g++ -O2 -mavx512f benchmarks/clock.cpp -o clock && taskset -c 0 ./clock
//
// The clock frequency is measured right after each loop with a chain of integer multiplications, 3
// cycles each. If it is lower after the loads than after the multiply-adds only, the processor
// saves power, and no matrix product can reach the register-only peak.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#define F(acc, a) "vfmadd231ps %%zmm" #a ", %%zmm31, %%zmm" #acc "\n\t"
#define F3(i, j, k, a) F(i, a) F(j, a) F(k, a)
// Eight rows of three multiply-adds; `L` precedes each row.
#define STEP(L)                                                                                    \
  L(0, 24) F3(0, 1, 2, 24) L(1, 25) F3(3, 4, 5, 25) L(2, 26) F3(6, 7, 8, 26) L(3, 27)              \
  F3(9, 10, 11, 27) L(4, 24) F3(12, 13, 14, 24) L(5, 25) F3(15, 16, 17, 25) L(6, 26)               \
  F3(18, 19, 20, 26) L(7, 27) F3(21, 22, 23, 27)
#define NOTHING(row, to)
#define BROADCAST(row, to) "vbroadcastss " #row "*256(%[p]), %%zmm" #to "\n\t"
#define VECTORS                                                                                    \
  "vmovups 4096(%[p]), %%zmm28\n\t vmovups 4160(%[p]), %%zmm29\n\t vmovups 4224(%[p]), %%zmm30\n\t"
#define KEPT                                                                                       \
  "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", \
      "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21",    \
      "zmm22", "zmm23", "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31", "cc"
#define LOOP(name, before, L)                                                                      \
  void name(const float* p, long n) {                                                              \
    asm volatile(".p2align 6\n1:\n\t" before STEP(L) before STEP(L) before STEP(L) before STEP(L)  \
                 "dec %[n]\n\t jnz 1b\n\t"                                                         \
                 : [n] "+r"(n)                                                                     \
                 : [p] "r"(p)                                                                      \
                 : KEPT);                                                                          \
  }
LOOP(alone, "", NOTHING)
LOOP(with_broadcasts, "", BROADCAST)
LOOP(with_all_loads, VECTORS, BROADCAST)

void integer_chain(long n) {
  long x = 3;
  for (long i = 0; i < n; ++i)
    asm volatile("imul %0, %0\n\t imul %0, %0\n\t imul %0, %0\n\t imul %0, %0\n\t" : "+r"(x));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const char* name, void (*loop)(const float*, long), const float* data) {
  constexpr long kSteps = 300000, kLinks = 500;
  std::vector<double> rates, clocks;
  for (int round = 0; round < 31; ++round) {
    const double begin = now();
    loop(data, kSteps);
    const double middle = now();
    integer_chain(kLinks);
    const double end = now();
    rates.push_back(kSteps * 4 * 24 * 32 / (middle - begin) / 1e9);
    clocks.push_back(kLinks * 12 / (end - middle) / 1e9);
  }
  std::printf("%-34s %6.1f GFLOP/s, then a clock of %.2f GHz\n", name, median(rates),
              median(clocks));
}

}  // namespace

int main() {
  float* data = static_cast<float*>(std::aligned_alloc(4096, 8192));
  std::fill(data, data + 2048, 0.0f);
  measure("24 multiply-adds", alone, data);
  measure("24 multiply-adds, 8 broadcasts", with_broadcasts, data);
  measure("24 multiply-adds, 8 broadcasts, 3 loads", with_all_loads, data);
  std::free(data);
}
