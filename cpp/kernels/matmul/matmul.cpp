#include REGARD_TARGET_HEADER

#include "../targets/families.hpp"
#include "matmul.hpp"

namespace regard {
namespace {

template <class Shape>
constexpr MatmulKernels matmul_of() {
  using Product = Matmul<Shape>;
  return {
      .workspace_bytes = Product::workspace_bytes,
      .run = Product::run,
      .task_rows = Product::kTaskRows,
      .task_columns = Product::kTaskColumns,
      .panel_columns = Product::kPanel,
      .depth = Product::kDepth,
  };
}

}  // namespace

constexpr PerScalar<MatmulKernels> REGARD_TARGET_NAME::matmul = {matmul_of<Float32>(),
                                                                 matmul_of<Float64>()};

}  // namespace regard
