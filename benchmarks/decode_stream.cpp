// Measures how fast one thread decodes from memory, in GB/s of keys and values, by rows (query
// heads per key head), by storage type, and by the size of the system's pages:
//
//   g++ -std=c++20 -O3 -ffp-contract=off -march=x86-64-v4 -Icpp benchmarks/decode_stream.cpp -o stream
//   taskset -c 0 ./stream
//
// For another target, add -DREGARD_TARGET_HEADER='"kernels/targets/x86_v3.hpp"' and its -march.
#ifndef REGARD_TARGET_HEADER
#define REGARD_TARGET_HEADER "kernels/targets/x86_v4.hpp"
#endif
#include REGARD_TARGET_HEADER

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/decode/decode.hpp"

using namespace regard;

namespace {

using Decode = AttentionDecode;
constexpr std::int64_t kDim = 128, kKeys = 16384;
constexpr std::size_t kBytes = 256u << 20, kHugePage = 2u << 20;  // of keys, and of values
constexpr int kTurns = 9;

// Filled with bytes that are 0.01 as float32, 1.06 as float16 and 60 as int8.
char* memory(std::size_t bytes, int advice) {
  void* mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  const std::uintptr_t start = (reinterpret_cast<std::uintptr_t>(mapped) + kHugePage - 1) & -kHugePage;
  char* aligned = reinterpret_cast<char*>(start);
  madvise(aligned, bytes, advice);
  std::memset(aligned, 0x3c, bytes);
  return aligned;
}

struct Cache {
  char* keys;
  char* values;
  float* scales;
};

// All heads once.
double seconds(AttentionProblem problem, const Cache& cache, void* workspace) {
  const std::int64_t head_bytes = kKeys * problem.key.row_stride * bytes_of(problem.key.element);
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(kBytes); at += head_bytes) {
    AttentionTask task{};
    task.query = problem.query.data;
    task.key = cache.keys + at;
    task.value = cache.values + at;
    if (is_quantized(problem.key.element)) task.key_scales = task.value_scales = cache.scales;
    task.output = problem.output.data;
    task.kv_len = kKeys;
    task.row_end = problem.heads;
    const KeyInterval keys = Decode::begin(problem, task, workspace).window;
    Decode::advance(problem, task, keys.begin, keys.end, workspace);
    Decode::finish(problem, task, workspace);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double gigabytes_per_second(int rows, Element element, const Cache& cache) {
  std::vector<float> query(static_cast<std::size_t>(rows * kDim), 0.1f), output(query);
  AttentionProblem problem{};
  problem.window_left = problem.window_right = kUnbounded;
  problem.scale = 1;
  problem.batch.count = 1;
  problem.heads = rows;
  problem.kv_heads = problem.q_len = 1;
  problem.kv_len = kKeys;
  problem.head_dim = problem.value_dim = kDim;
  problem.query = {query.data(), Element::float32, kDim, kDim, 1, nullptr, 0};
  problem.output = {output.data(), Element::float32, kDim, kDim, 1, nullptr, 0};
  const std::int64_t stride = element == Element::q4_1 ? kDim / 2 : kDim;
  problem.key = {cache.keys, element, kKeys * stride, stride, 1, nullptr, 0};
  problem.value = {cache.values, element, kKeys * stride, stride, 1, nullptr, 0};
  if (is_quantized(element)) {
    const std::int64_t of_row = element == Element::q4_1 ? kDim / kGroupOfFourBits : 1;
    problem.key_scales = {cache.scales, Element::float32, kKeys * of_row, of_row, 1, nullptr, 0};
    problem.value_scales = problem.key_scales;
  }
  const std::int64_t size = (Decode::workspace_bytes(problem, rows) + 63) / 64 * 64;
  void* workspace = std::aligned_alloc(64, static_cast<std::size_t>(size));
  std::vector<double> times;
  for (int turn = 0; turn < kTurns; ++turn) times.push_back(seconds(problem, cache, workspace));
  std::free(workspace);
  std::nth_element(times.begin(), times.begin() + kTurns / 2, times.end());
  return 2e-9 * static_cast<double>(kBytes) / times[kTurns / 2];
}

}  // namespace

int main() {
  const auto cache_of = [](int advice) {
    return Cache{memory(kBytes, advice), memory(kBytes, advice),
                 reinterpret_cast<float*>(memory(kKeys * sizeof(float) * kDim / kGroupOfFourBits, advice))};
  };
  const Cache huge = cache_of(MADV_HUGEPAGE), small = cache_of(MADV_NOHUGEPAGE);
  const struct {
    const char* name;
    Element element;
  } kinds[] = {{"float32", Element::float32}, {"float16", Element::float16}, {"int8", Element::int8},
               {"float8", Element::float8},   {"q4_1", Element::q4_1}};
  std::printf("rows  stored   pages of 2 MB  of 4 KB\n");
  for (const int rows : {1, 4, 8})
    for (const auto& kind : kinds)
      std::printf("%4d  %-8s %13.1f  %7.1f\n", rows, kind.name,
                  gigabytes_per_second(rows, kind.element, huge),
                  gigabytes_per_second(rows, kind.element, small));
}
