#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "matmul.hpp"

namespace regard {
namespace {

template <class Shape>
constexpr MatmulKernels matmul_of() {
  using Product = Matmul<Shape>;
  return {
      .takes_few_rows = Product::takes_few_rows,
      .workspace_bytes = Product::workspace_bytes,
      .run = Product::run,
      .wave_rows_bytes = Product::wave_rows_bytes,
      .wave_panels_bytes = Product::wave_panels_bytes,
      .pack_rows = Product::pack_rows,
      .pack_panels = Product::pack_panels,
      .run_wave = Product::run_wave,
      .tile_rows = Product::kRows,
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
