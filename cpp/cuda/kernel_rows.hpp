// Defines the table of one element type; included once by each source of a type.
#pragma once

#include "forward.hpp"
#include "kernel_table.hpp"
#include "merge_chunks.hpp"

namespace regard::cuda {

// The extent of a kernel's testing: compiled, emulated, or run on a GPU, with date and commit.
constexpr const char* kProof = "emulated on the CPU";

template <class Tile, int kValueDim, bool kOptions>
constexpr ForwardKernel forward_row(const char* name) {
  return {{name, kProof},
          kValueDim,
          kOptions,
          &forward<Tile, kValueDim * Tile::Type::kBytes / kPanelBytes, kOptions>,
          &forward_shared_bytes<Tile, kOptions>};
}

}  // namespace regard::cuda

#define REGARD_FORWARD_ROWS(type, Tile, value_dim)                                        \
  forward_row<Tile, value_dim, false>("forward, " type ", value_dim up to " #value_dim),  \
      forward_row<Tile, value_dim, true>("forward, " type ", value_dim up to " #value_dim \
                                         ", with options"),

#define REGARD_KERNELS(type, Tile)                                        \
  namespace regard::cuda {                                                \
  Kernels type##_kernels() {                                              \
    static const ForwardKernel rows[] = {                                 \
        REGARD_FORWARD_ROWS(#type, Tile, 64)                              \
        REGARD_FORWARD_ROWS(#type, Tile, 128)                             \
        REGARD_FORWARD_ROWS(#type, Tile, 256)                             \
    };                                                                    \
    return {rows, sizeof rows / sizeof *rows,                             \
            {"merge chunks, " #type, kProof}, &merge_chunks<Tile::Type>}; \
  }                                                                       \
  }
