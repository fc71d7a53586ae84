// Attention on a GPU, as plain data that the host fills in and the kernels read.
//
// Pointers refer to device memory, and strides are in elements. The last axis of query, key, value
// and output is contiguous. Positions have 32 bits: the host rejects longer sequences. Addresses
// have 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard::cuda {

enum class Element : std::int32_t { float16, bfloat16, float32 };

constexpr std::int32_t kUnbounded = -1;  // an unbounded side of a window

// (batch, heads, rows, columns). Broadcast axes have stride 0. Data is null if the array does not
// exist.
struct Tensor {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;
};

// One 32-bit integer for each batch entry, or `all` for every entry if data is null.
struct PerEntry {
  const std::int32_t* data = nullptr;
  std::int32_t all = 0;
};

struct AttentionProblem {
  Element element = Element::float32;  // of query, key, value and output

  std::int32_t batch = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;  // divides heads
  std::int32_t q_len = 0;     // of the longest sequence, if ragged
  std::int32_t kv_len = 0;
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;

  // Ragged: sequence b has the rows starts[b] to starts[b + 1], and batch strides are not used.
  // Otherwise null.
  const std::int32_t* query_starts = nullptr;  // [batch + 1]
  const std::int32_t* key_starts = nullptr;

  Tensor query, key, value, output;
  Tensor lse;   // float32, (batch, heads, rows): column_stride is not used
  Tensor mask;  // one byte per element, nonzero if a key is visible; heads are query heads
  Tensor bias;  // added to the score; -inf hides
  Element bias_element = Element::float32;

  // The keys that a query sees. Causal attention is a window_right of 0.
  std::int32_t window_left = kUnbounded;
  std::int32_t window_right = kUnbounded;
  bool query_offset_is_end = false;  // the last query is at the position of an entry's last key
  PerEntry query_offset;             // how many keys precede the first query
  PerEntry key_lengths;              // keys at and beyond it are ignored; `all` is kv_len if not given
  PerEntry left_padding;             // keys before it are ignored

  // The score: softcap * tanh(scale * (q . k) / softcap) - slope * |p - j| + bias.
  float scale = 1;
  float softcap = 0;                    // 0 means none
  const float* alibi_slopes = nullptr;  // [head], or [batch][head] if the stride is not 0
  std::int64_t alibi_batch_stride = 0;
  const float* sinks = nullptr;  // [head]
};

}  // namespace regard::cuda
