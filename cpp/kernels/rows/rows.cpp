#include REGARD_TARGET_HEADER

#include "../families.hpp"
#include "convert_rows.hpp"
#include "merge_states.hpp"
#include "quantize_rows.hpp"
#include "stages.hpp"

namespace regard {
namespace {

template <class T>
constexpr RowKernels rows_of() {
  return {
      .stage = stage_rows<T>,
      .merge = merge_rows<T>,
      .quantize = quantize_rows,
      .convert = convert_row,
  };
}

}  // namespace

constexpr PerScalar<RowKernels> REGARD_TARGET_NAME::rows = {rows_of<float>(), rows_of<double>()};

}  // namespace regard
