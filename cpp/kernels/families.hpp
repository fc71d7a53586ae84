// The tables that the sources of a target define, one a family, and that target.cpp gathers.
#pragma once

#include "kernel_table.hpp"

namespace regard::REGARD_TARGET_NAME {

extern const PerScalar<AttentionKernels> attention;
extern const PerScalar<BackwardKernels> backward;
extern const PerScalar<DecodeKernels> decode;
extern const Int8Kernels int8;
extern const PerScalar<MatmulKernels> matmul;
extern const PerScalar<RowKernels> rows;
extern const PerScalar<RooflineKernels> roofline;
extern const PerScalar<SummaryKernels> summary;
extern const PerScalar<TangentKernels> tangent;

extern const Target target;

}  // namespace regard::REGARD_TARGET_NAME
