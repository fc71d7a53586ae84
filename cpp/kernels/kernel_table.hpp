// The kernels of a target: one table per family for each element type, and both element types under
// the target's name. The dispatch accesses a target only through this structure.
#pragma once

#include "attention/table.hpp"
#include "backward/table.hpp"
#include "bfloat16/table.hpp"
#include "decode/table.hpp"
#include "int8/table.hpp"
#include "matmul/table.hpp"
#include "roofline/table.hpp"
#include "rows/table.hpp"
#include "summary/table.hpp"
#include "tangent/table.hpp"

namespace regard {

struct Kernels {
#define REGARD_FAMILY(name, Table, unit) const Table& name;
#include "families.inc"
#undef REGARD_FAMILY
};

template <class Table>
struct PerScalar {
  Table float32;
  Table float64;
};

struct Target {
  const char* name;
  int vector_bytes;
  Kernels float32;
  Kernels float64;
};

}  // namespace regard
