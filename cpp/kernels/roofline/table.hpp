// The dispatch's interface to the roofline family: the peaks of one core.
#pragma once

#include <cstdint>

namespace regard {

struct RooflineKernels {
  // Runs `steps` rounds of multiplications and additions in registers; returns the number of
  // floating-point operations.
  double (*fma_rounds)(std::int64_t steps);

  // Reads `bytes` bytes of memory aligned to 64 and does nothing else; `bytes` is a multiple of
  // 512.
  void (*read_bytes)(const void* from, std::int64_t bytes);
};

}  // namespace regard
