// The roofline family as the dispatch calls it: the peaks of one core.
#pragma once

#include <cstdint>

namespace regard {

struct RooflineKernels {
  // Multiplies and adds in registers for `steps` rounds; returns the floating-point operations.
  double (*fma_rounds)(std::int64_t steps);

  // Reads `bytes` from memory aligned to 64 and nothing else; `bytes` is a multiple of 512.
  void (*read_bytes)(const void* from, std::int64_t bytes);
};

}  // namespace regard
