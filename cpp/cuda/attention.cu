// The host side: selects the kernels of a problem, and launches them.
#include "attention.hpp"

#include <cmath>

#include "kernel_table.hpp"

namespace regard::cuda {
namespace {

constexpr double kLargest = 3.402823466e38;
constexpr int kMostDim = 256;

Kernels kernels_of(Element element) {
  return element == Element::float16    ? float16_kernels()
         : element == Element::bfloat16 ? bfloat16_kernels()
                                        : float32_kernels();
}

std::int64_t bytes_of(Element element) { return element == Element::float32 ? 4 : 2; }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t rows_of_kv_head(const AttentionProblem& problem) {
  return static_cast<std::int64_t>(problem.heads) / problem.kv_heads * problem.q_len;
}

// Keys are split if the rows of a key head fit in one tile: otherwise there would be few blocks,
// each with many keys.
std::int64_t chunks_of(const AttentionProblem& problem) {
  if (rows_of_kv_head(problem) > kTileRows || problem.kv_len <= kChunkKeys) return 1;
  return ceil_div(problem.kv_len, kChunkKeys);
}

std::int64_t states_of(const AttentionProblem& problem) {
  return std::int64_t{problem.batch} * problem.kv_heads * rows_of_kv_head(problem) * chunks_of(problem);
}

bool is_empty(const AttentionProblem& problem) {
  return problem.batch == 0 || problem.heads == 0 || problem.q_len == 0;
}

bool has_options(const AttentionProblem& problem) {
  return problem.softcap != 0 || problem.alibi_slopes || problem.mask.data || problem.bias.data;
}

// Whether every row of an array begins at a multiple of `bytes`.
bool rows_begin_at(const Tensor& tensor, Element element, std::int64_t bytes) {
  const std::int64_t strides = tensor.batch_stride | tensor.head_stride | tensor.row_stride;
  return reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
         strides * bytes_of(element) % bytes == 0;
}

// Limited to the range of float32 arithmetic: a cap beyond the largest scores changes none, and
// below kLeast all weights are equal to the last bit.
double softcap_of(const AttentionProblem& problem) {
  constexpr double kMost = 1e37, kLeast = 1e-20;
  if (problem.softcap > kMost) return 0;
  return problem.softcap != 0 && problem.softcap < kLeast ? kLeast : problem.softcap;
}

float nearest_finite(double value) {
  return static_cast<float>(value > kLargest ? kLargest : value < -kLargest ? -kLargest : value);
}

Arguments arguments_of(const AttentionProblem& problem, void* workspace) {
  Arguments arguments{};
  arguments.problem = problem;
  const double softcap = softcap_of(problem);
  arguments.softcap = static_cast<float>(softcap);
  arguments.product_scale = nearest_finite(softcap != 0 ? problem.scale / softcap : problem.scale);
  arguments.query_is_aligned = rows_begin_at(problem.query, problem.element, 16);
  arguments.key_is_aligned = rows_begin_at(problem.key, problem.element, 16);
  arguments.value_is_aligned = rows_begin_at(problem.value, problem.element, 16);
  arguments.output_is_paired = rows_begin_at(problem.output, problem.element, 4);
  arguments.row_tiles = static_cast<std::int32_t>(ceil_div(rows_of_kv_head(problem), kTileRows));
  arguments.chunks = static_cast<std::int32_t>(chunks_of(problem));
  if (arguments.chunks > 1) {
    arguments.chunk_outputs = static_cast<float*>(workspace);
    arguments.chunk_states = arguments.chunk_outputs + states_of(problem) * problem.value_dim;
  }
  return arguments;
}

}  // namespace

std::size_t workspace_bytes(const AttentionProblem& problem) {
  if (is_empty(problem) || chunks_of(problem) == 1) return 0;
  return static_cast<std::size_t>(states_of(problem)) * static_cast<std::size_t>(problem.value_dim + 2) *
         sizeof(float);
}

cudaError_t attention(const AttentionProblem& problem, void* workspace, cudaStream_t stream) {
  if (is_empty(problem)) return cudaSuccess;
  if (problem.head_dim > kMostDim || problem.value_dim > kMostDim) return cudaErrorInvalidValue;
  const std::int64_t rows = rows_of_kv_head(problem);
  const std::int64_t heads = std::int64_t{problem.batch} * problem.kv_heads;
  const std::int64_t blocks = heads * ceil_div(rows, kTileRows) * chunks_of(problem);
  if (blocks > INT32_MAX || heads > INT32_MAX / kTileRows) return cudaErrorInvalidValue;
  const Arguments arguments = arguments_of(problem, workspace);
  const Kernels kernels = kernels_of(problem.element);
  const ForwardKernel* row = kernels.forward;
  while (row->most_value_dim < problem.value_dim || row->has_options != has_options(problem)) ++row;
  const cudaError_t error = launch(row->kernel, static_cast<std::uint32_t>(blocks),
                                   row->shared_bytes(problem.head_dim), stream, arguments);
  if (error != cudaSuccess || arguments.chunks == 1) return error;
  return launch(kernels.merge_chunks, static_cast<std::uint32_t>(heads * rows), 0, stream, arguments);
}

const KernelInfo* kernels(int* count) {
  constexpr int kMost = 32;
  static KernelInfo all[kMost];
  static const int number = [] {
    int n = 0;
    for (const Kernels& kernels : {float16_kernels(), bfloat16_kernels(), float32_kernels()}) {
      for (int i = 0; i < kernels.forward_count; ++i) all[n++] = kernels.forward[i].info;
      all[n++] = kernels.merge_chunks_info;
    }
    return n;
  }();
  *count = number;
  return all;
}

}  // namespace regard::cuda
