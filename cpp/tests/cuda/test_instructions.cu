// Tests each wrapper of cpp/cuda/instructions.hpp separately from the kernels, against tables and
// rules taken from the PTX ISA. Compiled by g++, it tests the emulation; compiled by nvcc, it tests
// the instructions on a GPU, with the same tables.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <instructions.hpp>
#include <launch.hpp>
#include <vector>

namespace regard::cuda {
namespace {

int failures = 0;

void expect(bool condition, const char* what, int lane, int index) {
  if (condition) return;
  ++failures;
  std::fprintf(stderr, "%s: lane %d, element %d\n", what, lane, index);
}

// PTX ISA, mma.m16n8k16 with 16-bit elements: the positions {row, column} of the elements of lanes
// 0 to 3. Each following group of four lanes is one row (of a and c) or one column (of b) further.
constexpr int kPlacesOfA[4][8][2] = {
    {{0, 0}, {0, 1}, {8, 0}, {8, 1}, {0, 8}, {0, 9}, {8, 8}, {8, 9}},
    {{0, 2}, {0, 3}, {8, 2}, {8, 3}, {0, 10}, {0, 11}, {8, 10}, {8, 11}},
    {{0, 4}, {0, 5}, {8, 4}, {8, 5}, {0, 12}, {0, 13}, {8, 12}, {8, 13}},
    {{0, 6}, {0, 7}, {8, 6}, {8, 7}, {0, 14}, {0, 15}, {8, 14}, {8, 15}},
};
constexpr int kPlacesOfB[4][4][2] = {
    {{0, 0}, {1, 0}, {8, 0}, {9, 0}},
    {{2, 0}, {3, 0}, {10, 0}, {11, 0}},
    {{4, 0}, {5, 0}, {12, 0}, {13, 0}},
    {{6, 0}, {7, 0}, {14, 0}, {15, 0}},
};
constexpr int kPlacesOfC[4][4][2] = {
    {{0, 0}, {0, 1}, {8, 0}, {8, 1}},
    {{0, 2}, {0, 3}, {8, 2}, {8, 3}},
    {{0, 4}, {0, 5}, {8, 4}, {8, 5}},
    {{0, 6}, {0, 7}, {8, 6}, {8, 7}},
};

// Small integers, exact in every type, as bits.
std::uint32_t float16_of(int n) {
  constexpr std::uint32_t kBits[] = {0x0000, 0x3C00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
  return kBits[n];
}
std::uint32_t bfloat16_of(int n) {
  constexpr std::uint32_t kBits[] = {0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0};
  return kBits[n];
}

// A kernel receives its data through the pointers of a problem.
__device__ __forceinline__ std::uint32_t* words_in(const Arguments& arguments) {
  return static_cast<std::uint32_t*>(arguments.problem.query.data);
}
__device__ __forceinline__ std::uint32_t* words_out(const Arguments& arguments) {
  return static_cast<std::uint32_t*>(arguments.problem.output.data);
}

template <class T>
__global__ void run_multiply_add(const __grid_constant__ Arguments arguments) {
  const std::uint32_t* in = words_in(arguments) + threadIdx.x * 6;
  float c[4] = {1000, 2000, 3000, 4000};
  const std::uint32_t a[4] = {in[0], in[1], in[2], in[3]};
  multiply_add<T>(c[0], c[1], c[2], c[3], a, in[4], in[5]);
  for (int i = 0; i < 4; ++i) words_out(arguments)[threadIdx.x * 4 + i] = bits_of_float(c[i]);
}

template <bool kTransposed>
__global__ void run_load_matrices(const __grid_constant__ Arguments arguments) {
  unsigned char* shared = dynamic_shared();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Row r of matrix m has the elements 256 m + 8 r + column, and rows are stored in a different
  // order from the lanes.
  Words4 row;
  for (int w = 0; w < 4; ++w) {
    const std::uint32_t low = static_cast<std::uint32_t>(lane / 8 * 256 + lane % 8 * 8 + 2 * w);
    row.word[w] = low | (low + 1) << 16;
  }
  unsigned char* mine = shared + (lane * 5 % 32 + static_cast<int>(threadIdx.x) / 32 * 32) * 16;
  store_shared(mine, row);
  block_barrier();
  const Words4 got = load_matrices<kTransposed>(mine);
  for (int w = 0; w < 4; ++w) words_out(arguments)[threadIdx.x * 4 + w] = got.word[w];
}

__global__ void run_copies(const __grid_constant__ Arguments arguments) {
  unsigned char* shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  copy_async(shared + thread * 16, words_in(arguments) + thread * 4, thread % 17);
  commit_copies();
  commit_copies();
  wait_for_copies<1>();
  block_barrier();
  const Words4 got = load_shared<Words4>(shared + (kThreads - 1 - thread) * 16);
  for (int w = 0; w < 4; ++w) words_out(arguments)[thread * 4 + w] = got.word[w];
}

template <class T>
__global__ void run_pack(const __grid_constant__ Arguments arguments) {
  const std::uint32_t* in = words_in(arguments) + threadIdx.x * 2;
  words_out(arguments)[threadIdx.x] = pack<T>(float_of_bits(in[0]), float_of_bits(in[1]));
}

__global__ void run_others(const __grid_constant__ Arguments arguments) {
  unsigned char* shared = dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x);
  std::uint32_t* out = words_out(arguments) + thread * 5;
  out[0] = shuffle_xor(static_cast<std::uint32_t>(thread), 5);
  out[1] = bits_of_float(exp2_approximate(float_of_bits(words_in(arguments)[thread])));
  out[2] = any_thread(thread == 77);
  out[3] = any_thread(thread == kThreads);
  store_shared(shared + thread * 4, static_cast<std::uint32_t>(thread));
  block_barrier();
  out[4] = load_shared<std::uint32_t>(shared + (thread ^ 31) * 4);
}

// Runs a kernel of one block, and returns its output.
std::vector<std::uint32_t> run(Kernel kernel, std::vector<std::uint32_t> input, std::size_t words) {
  std::vector<std::uint32_t> output(words);
  Arguments arguments{};
#ifdef __CUDACC__
  void* memory;
  const std::size_t bytes = (input.size() + words) * 4;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) std::exit(2);
  cudaMemcpy(memory, input.data(), input.size() * 4, cudaMemcpyHostToDevice);
  arguments.problem.query.data = memory;
  arguments.problem.output.data = static_cast<std::uint32_t*>(memory) + input.size();
  if (launch(kernel, 1, 4096, nullptr, arguments) != cudaSuccess) std::exit(2);
  if (cudaMemcpy(output.data(), arguments.problem.output.data, words * 4, cudaMemcpyDeviceToHost) != cudaSuccess)
    std::exit(2);
  cudaFree(memory);
#else
  arguments.problem.query.data = input.data();
  arguments.problem.output.data = output.data();
  if (launch(kernel, 1, 4096, nullptr, arguments) != cudaSuccess) std::exit(2);
#endif
  return output;
}

template <class T>
void test_multiply_add(const char* what, std::uint32_t (*bits_of)(int)) {
  // No two rows of a, and no two columns of b, are alike.
  int a[16][16], b[16][8];
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k) {
      a[i][k] = (i * 5 + k * 3 + i * k) % 8;
      if (i < 8) b[k][i] = (i * 7 + k * k + 3 * i * k) % 8;
    }
  std::vector<std::uint32_t> input(kThreads * 6);
  for (int thread = 0; thread < kThreads; ++thread) {
    const int lane = thread % 32;
    for (int i = 0; i < 8; ++i) {
      const int* place = kPlacesOfA[lane % 4][i];
      const std::uint32_t bits = bits_of(a[place[0] + lane / 4][place[1]]);
      input[static_cast<std::size_t>(thread * 6 + i / 2)] |= bits << i % 2 * 16;
    }
    for (int i = 0; i < 4; ++i) {
      const int* place = kPlacesOfB[lane % 4][i];
      input[static_cast<std::size_t>(thread * 6 + 4 + i / 2)] |= bits_of(b[place[0]][place[1] + lane / 4])
                                                                 << i % 2 * 16;
    }
  }
  const auto output = run(&run_multiply_add<T>, input, kThreads * 4);
  for (int thread = 0; thread < kThreads; ++thread)
    for (int i = 0; i < 4; ++i) {
      const int lane = thread % 32, *place = kPlacesOfC[lane % 4][i];
      int sum = 1000 * (i + 1);
      for (int k = 0; k < 16; ++k) sum += a[place[0] + lane / 4][k] * b[k][place[1]];
      const float got = float_of_bits(output[static_cast<std::size_t>(thread * 4 + i)]);
      expect(got == static_cast<float>(sum), what, lane, i);
    }
}

// PTX ISA, ldmatrix: lane l receives the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each
// matrix, or, with .trans, these rows of column l / 4.
template <bool kTransposed>
void test_load_matrices(const char* what) {
  const auto output = run(&run_load_matrices<kTransposed>, {}, kThreads * 4);
  for (int thread = 0; thread < kThreads; ++thread)
    for (int w = 0; w < 4; ++w)
      for (int half = 0; half < 2; ++half) {
        const int lane = thread % 32, along = lane % 4 * 2 + half, across = lane / 4;
        const int element = 256 * w + (kTransposed ? 8 * along + across : 8 * across + along);
        const std::uint32_t got = output[static_cast<std::size_t>(thread * 4 + w)] >> half * 16 & 0xFFFF;
        expect(got == static_cast<std::uint32_t>(element), what, lane, 2 * w + half);
      }
}

// PTX ISA, cp.async: bytes beyond src-size are zeros.
void test_copies() {
  std::vector<std::uint32_t> input(kThreads * 4);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = 0x01010101u * static_cast<std::uint32_t>(i % 251 + 1);
  const auto output = run(&run_copies, input, kThreads * 4);
  for (int thread = 0; thread < kThreads; ++thread)
    for (int byte = 0; byte < 16; ++byte) {
      const int from = kThreads - 1 - thread;
      const auto at = [byte](const std::vector<std::uint32_t>& words, int first) {
        return words[static_cast<std::size_t>(first * 4 + byte / 4)] >> byte % 4 * 8 & 0xFF;
      };
      expect(at(output, thread) == (byte < from % 17 ? at(input, from) : 0), "cp.async", from, byte);
    }
}

// Two numbers, and their 16-bit values, the first in the lower half: rounded to nearest, ties to
// even.
struct Packed {
  float low, high;
  std::uint32_t float16, bfloat16;
};
const Packed kPacked[] = {
    {1.0f, -2.0f, 0xC0003C00, 0xC0003F80},
    {-0.0f, 0.0f, 0x00008000, 0x00008000},
    {0x1.002p0f, 0x1.006p0f, 0x3C023C00, 0x3F803F80},        // halfway between two float16 numbers
    {0x1.01p0f, 0x1.03p0f, 0x3C0C3C04, 0x3F823F80},          // halfway between two bfloat16 numbers
    {0x1p-24f, 0x1p-25f, 0x00000001, 0x33003380},            // below the normal float16 numbers
    {65504.0f, 65520.0f, 0x7C007BFF, 0x47804780},            // the largest float16 number, and beyond
    {kInfinity, -kInfinity, 0xFC007C00, 0xFF807F80},
};

template <class T>
void test_pack(const char* what) {
  constexpr int kRows = static_cast<int>(sizeof kPacked / sizeof *kPacked);
  std::vector<std::uint32_t> input(kThreads * 2);
  for (int thread = 0; thread < kThreads; ++thread) {
    input[static_cast<std::size_t>(thread * 2)] = bits_of_float(kPacked[thread % kRows].low);
    input[static_cast<std::size_t>(thread * 2 + 1)] = bits_of_float(kPacked[thread % kRows].high);
  }
  const auto output = run(&run_pack<T>, input, kThreads);
  for (int row = 0; row < kRows; ++row) {
    const Packed& packed = kPacked[row];
    const std::uint32_t wanted = T::kElement == Element::float16 ? packed.float16 : packed.bfloat16;
    expect(output[static_cast<std::size_t>(row)] == wanted, what, row, 0);
  }
}

void test_others() {
  std::vector<std::uint32_t> input(kThreads);
  std::vector<float> x(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    x[static_cast<std::size_t>(thread)] = static_cast<float>(thread) * 1.37f - 149;
    if (thread == 0) x[0] = -kInfinity;
    if (thread == 1) x[1] = 0;
    input[static_cast<std::size_t>(thread)] = bits_of_float(x[static_cast<std::size_t>(thread)]);
  }
  const auto output = run(&run_others, input, kThreads * 5);
  for (int thread = 0; thread < kThreads; ++thread) {
    const auto* got = &output[static_cast<std::size_t>(thread * 5)];
    const double exact = std::exp2(static_cast<double>(x[static_cast<std::size_t>(thread)]));
    const double wanted = exact < 0x1p-126 ? 0 : exact;
    expect(got[0] == static_cast<std::uint32_t>(thread ^ 5), "shfl.bfly", thread, 0);
    expect(std::fabs(static_cast<double>(float_of_bits(got[1])) - wanted) <= 0x1p-21 * wanted, "ex2", thread, 0);
    expect(got[2] != 0, "barrier with a vote, one thread", thread, 0);
    expect(got[3] == 0, "barrier with a vote, no thread", thread, 0);
    expect(got[4] == static_cast<std::uint32_t>(thread ^ 31), "shared memory after a barrier", thread, 0);
  }
}

}  // namespace
}  // namespace regard::cuda

int main() {
  using namespace regard::cuda;
  test_multiply_add<Float16>("mma, float16", &float16_of);
  test_multiply_add<BFloat16>("mma, bfloat16", &bfloat16_of);
  test_load_matrices<false>("ldmatrix");
  test_load_matrices<true>("ldmatrix.trans");
  test_copies();
  test_pack<Float16>("cvt, float16");
  test_pack<BFloat16>("cvt, bfloat16");
  test_others();
  if (failures == 0) std::printf("all instructions agree with their tables\n");
  return failures != 0;
}
