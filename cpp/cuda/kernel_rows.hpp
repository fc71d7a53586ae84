// Fills in the table of one type of elements: included once by each of its sources.
#pragma once

#include "forward.hpp"
#include "kernel_table.hpp"
#include "merge_chunks.hpp"

namespace regard::cuda {

template <class Tile, int kValueDim, bool kOptions>
constexpr ForwardKernel forward_row(const char* name) {
  return {{name, "emulated on the CPU"},
          kValueDim,
          kOptions,
          &forward<Tile, kValueDim * Tile::Type::kBytes / kPanelBytes, kOptions>,
          &forward_shared_bytes<Tile, kOptions>};
}

}  // namespace regard::cuda

#define REGARD_FORWARD_ROWS(name, Tile, value_dim)                                        \
  forward_row<Tile, value_dim, false>("forward, " name ", value_dim up to " #value_dim),  \
      forward_row<Tile, value_dim, true>("forward, " name ", value_dim up to " #value_dim \
                                         ", with options")
