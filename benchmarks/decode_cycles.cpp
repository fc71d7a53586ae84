// Measures the cycles of a decode's two products for every 16 numbers of keys and of values, which
// are in L1 (L2 for float32). Also measures scores computed as a sum over dimensions in lanes (one
// or two float32 rows). The kernels do not use this sum, since its bits differ from the forward
// kernel's:
//
//   g++ -std=c++20 -O3 -ffp-contract=off -march=x86-64-v4 -Icpp benchmarks/decode_cycles.cpp -o cycles
//   taskset -c 0 ./cycles
//
// For another target, add -DREGARD_TARGET_HEADER='"kernels/targets/x86_v3.hpp"' and its -march.
#ifndef REGARD_TARGET_HEADER
#define REGARD_TARGET_HEADER "kernels/targets/x86_v4.hpp"
#endif
#include REGARD_TARGET_HEADER

#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/decode/decode.hpp"

using namespace regard;

namespace {

constexpr int kDim = 128, kKeys = kDecodeBlock, kSixteens = kKeys * kDim / 16;

// Dependent multiplications take three cycles each.
double cycles_of_a_tick() {
  double most = 0;
  for (int turn = 0; turn < 20; ++turn) {
    const unsigned long long begin = __rdtsc();
    long x = 1;
    for (int i = 0; i < 200000; ++i)
      asm volatile("imul %0, %0\n imul %0, %0\n imul %0, %0\n imul %0, %0" : "+r"(x));
    most = std::max(most, 2400000.0 / static_cast<double>(__rdtsc() - begin));
  }
  return most;
}

template <class Body>
double median_ticks(Body body) {
  std::vector<double> ticks;
  for (int i = 0; i < 4000; ++i) {
    const unsigned long long begin = __rdtsc();
    body();
    ticks.push_back(static_cast<double>(__rdtsc() - begin));
  }
  std::nth_element(ticks.begin(), ticks.begin() + 2000, ticks.end());
  return ticks[2000];
}

template <class Stored>
DecodeBlock block_of(Element element, int numbers_of_a_byte = 1) {
  static Stored keys[kKeys * kDim], values[kKeys * kDim];
  const int columns = kDim / numbers_of_a_byte;
  DecodeBlock block{};
  block.count = kKeys;
  block.steps = (1u << kDecodeSteps) - 1;
  block.seen = {0, kKeys};
  block.keys.element = block.values.element = element;
  block.keys.stride = block.values.stride = columns;
  for (int step = 0; step < kDecodeSteps; ++step) {
    block.keys.first[step] = keys + step * kDecodeStep * columns;
    block.values.first[step] = values + step * kDecodeStep * columns;
  }
  return block;
}

// scores[row][key] as dot products: dimensions are in lanes, and a transpose adds up the sums of as
// many keys as a vector has lanes.
template <int kRows>
void score_by_dots(const DecodeBlock& block, const float* queries, float* scores) {
  constexpr int kWidth = kLanes<float>, kStep = kDecodeStep;
  for (int k = 0; k < kKeys; k += kWidth) {
    const float* keys = static_cast<const float*>(block.keys.first[k / kStep]) + k % kStep * block.keys.stride;
    for (int row = 0; row < kRows; ++row) {
      Vec<float> sums[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        Vec<float> sum{};
        for (int d = 0; d < kDim; d += kWidth)
          sum = fma(load(keys + i * block.keys.stride + d), load(queries + row * kDim + d), sum);
        sums[i] = sum;
      }
      transpose<float>(sums);
      for (int half = kWidth / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
      store(scores + row * kKeys + k, sums[0]);
    }
  }
}

}  // namespace

int main() {
  static float queries[kDecodeRows * kDim], scores[kDecodeRows * kKeys], output[kDecodeRows * kDim];
  DecodeWorkspace work{};
  work.padded_head_dim = work.padded_value_dim = kDim;
  static float transposed[DecodeShape::kStripLanes * kDim];
  work.queries = queries;
  static float groups[2 * kDim / kGroupOfFourBits * kKeys];
  work.transposed = transposed;
  work.key_groups = work.value_groups = groups;
  static std::int32_t query_pairs[kDecodeRows * kDim / 2];
  static float query_sums[kDecodeRows * kDim / kGroupOfFourBits], query_steps[kDecodeRows];
  static float group_weights[kDecodeRows * kDim / kGroupOfFourBits * kKeys];
  static float group_sums[kDecodeRows * kDim / kGroupOfFourBits];
  work.group_weights = group_weights;
  work.group_sums = group_sums;
  work.query_pairs = query_pairs;
  work.query_sums = query_sums;
  work.query_steps = query_steps;
  work.scores = scores;
  work.output = output;
  const struct {
    const char* name;
    DecodeBlock block;
  } kinds[] = {{"float32", block_of<float>(Element::float32)},
               {"float16", block_of<Float16>(Element::float16)},
               {"int8", block_of<std::int8_t>(Element::int8)},
               {"float8", block_of<Float8>(Element::float8)},
               {"q4_1", block_of<Nibbles>(Element::q4_1, 2)}};
  const double cycles = cycles_of_a_tick() / kSixteens;
  std::printf("rows  stored   scores  values    dots\n");
  for (const int rows : {1, 2, 4, 8})
    for (const auto& kind : kinds) {
      work.rows = rows;
      const double of_scores = median_ticks([&] {
        Ahead ahead;
        score_steps(kind.block, work, ahead);
      });
      const double of_values = median_ticks([&] {
        Ahead ahead;
        work.is_fresh = true;
        add_decode_values(kind.block, work, ahead);
      });
      std::printf("%4d  %-8s %6.2f  %6.2f", rows, kind.name, of_scores * cycles, of_values * cycles);
      if (rows <= 2 && kind.block.keys.element == Element::float32)
        std::printf("  %6.2f", cycles * median_ticks([&] {
          rows == 1 ? score_by_dots<1>(kind.block, queries, scores) : score_by_dots<2>(kind.block, queries, scores);
        }));
      std::printf("\n");
    }
}
