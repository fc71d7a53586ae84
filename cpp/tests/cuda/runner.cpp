// Solves attention problems with the kernels of cpp/cuda on the emulation. Reads from standard input, and writes to
// standard output, for tests/cuda/cuda_emulation.py:
//
//   in    an AttentionProblem; the seed; for each of its pointers, in the order below, the number of bytes (-1
//         for null), their offset from a multiple of 16, and the bytes
//   out   an error code; the bytes of output and of lse; the numbers of bank conflicts, accesses and products
//
// Every array has separate memory that ends where the array ends, so that AddressSanitizer detects
// accesses beyond it.
#include <attention.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "emulation/emulated_launch.hpp"

namespace {

using regard::cuda::AttentionProblem;

bool read(void* to, std::size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }
void write(const void* from, std::size_t bytes) { std::fwrite(from, 1, bytes, stdout); }

struct Array {
  std::unique_ptr<unsigned char[]> memory;
  std::size_t bytes = 0;
  unsigned char* first = nullptr;

  void read_from_input() {
    std::int64_t header[2];
    if (!read(header, sizeof header)) std::exit(2);
    if (header[0] < 0) return;
    bytes = static_cast<std::size_t>(header[0]);
      // Allocations begin at a multiple of 16.
    const std::size_t wanted = static_cast<std::size_t>(header[1]) % 16;
    memory.reset(new unsigned char[wanted + bytes]);
    first = memory.get() + wanted;
    if (!read(first, bytes)) std::exit(2);
  }
};

}  // namespace

int main() {
  AttentionProblem problem;
  while (read(&problem, sizeof problem)) {
    std::uint32_t seed;
    if (!read(&seed, sizeof seed)) return 2;
    Array arrays[14];
    for (Array& array : arrays) array.read_from_input();
    int next = 0;
    const auto integers = [&] { return reinterpret_cast<const std::int32_t*>(arrays[next++].first); };
    const auto floats = [&] { return reinterpret_cast<const float*>(arrays[next++].first); };
    problem.query_starts = integers();
    problem.key_starts = integers();
    for (regard::cuda::Tensor* tensor : {&problem.query, &problem.key, &problem.value, &problem.output, &problem.lse,
                                         &problem.mask, &problem.bias})
      tensor->data = arrays[next++].first;
    problem.query_offset.data = integers();
    problem.key_lengths.data = integers();
    problem.left_padding.data = integers();
    problem.alibi_slopes = floats();
    problem.sinks = floats();
    const std::size_t workspace_bytes = regard::cuda::workspace_bytes(problem);
    const std::unique_ptr<unsigned char[]> workspace(new unsigned char[workspace_bytes]);
    std::memset(workspace.get(), 0xFF, workspace_bytes);
    emulation::statistics = {};
    regard::cuda::launch_seed = seed;
    const std::int64_t error = regard::cuda::attention(problem, workspace.get(), nullptr);
    const auto& [conflicts, accesses, products] = emulation::statistics;
    const std::int64_t numbers[] = {error, conflicts, accesses, products,
                                    static_cast<std::int64_t>(workspace_bytes)};
    write(numbers, sizeof numbers);
    write(arrays[5].first, arrays[5].bytes);
    write(arrays[6].first, arrays[6].bytes);
    std::fflush(stdout);
  }
  return 0;
}
