// The families that do not compute tiles of scores: one source, as tiles.cpp.
#include REGARD_TARGET_HEADER

#include "decode/decode.hpp"
#include "families.hpp"
#include "linear/backward.hpp"
#include "matmul/matmul.hpp"
#include "roofline/roofline.hpp"
#include "rows/convert_rows.hpp"
#include "rows/merge_states.hpp"
#include "rows/quantize_rows.hpp"
#include "rows/stages.hpp"

namespace regard::REGARD_TARGET_NAME {

constexpr PerScalar<DecodeKernels> decode = {AttentionDecode::kernels(), {}};
constexpr PerScalar<LinearKernels> linear = {linear_kernels<Float32>(), linear_kernels<Float64>()};
constexpr PerScalar<MatmulKernels> matmul = {Matmul<Float32>::kernels(),
                                             Matmul<Float64>::kernels()};
constexpr PerScalar<RooflineKernels> roofline = {{fma_rounds<Float32>, read_bytes},
                                                 {fma_rounds<Float64>, read_bytes}};
constexpr PerScalar<RowKernels> rows = {
    {stage_rows<float>, merge_rows<float>, quantize_rows, convert_row},
    {stage_rows<double>, merge_rows<double>, quantize_rows, convert_row}};

}  // namespace regard::REGARD_TARGET_NAME
