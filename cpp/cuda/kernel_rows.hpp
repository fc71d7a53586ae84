// Fills in the table of one element type; included once by each source of a type.
#pragma once

#include "forward.hpp"
#include "kernel_table.hpp"
#include "merge_chunks.hpp"

namespace regard::cuda {

// The extent of a kernel's testing.
constexpr const char* kEmulated = "emulated on the CPU";
constexpr const char* kRun = "run on an NVIDIA H200, 2026-11-26, commit 86d13d9";

template <class Tile, int kValueDim, bool kOptions>
constexpr ForwardKernel forward_row(const char* name, const char* proof) {
  return {{name, proof},
          kValueDim,
          kOptions,
          &forward<Tile, kValueDim * Tile::Type::kBytes / kPanelBytes, kOptions>,
          &forward_shared_bytes<Tile, kOptions>};
}

}  // namespace regard::cuda

#define REGARD_FORWARD_ROWS(name, Tile, value_dim, proof, proof_with_options)                       \
  forward_row<Tile, value_dim, false>("forward, " name ", value_dim up to " #value_dim, proof),     \
      forward_row<Tile, value_dim, true>("forward, " name ", value_dim up to " #value_dim           \
                                         ", with options", proof_with_options)
