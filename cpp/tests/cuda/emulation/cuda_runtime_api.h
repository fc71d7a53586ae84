// The few names of the CUDA runtime that the host side of the kernels uses, for machines without a
// toolkit.
#pragma once

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaStream_t = void*;
