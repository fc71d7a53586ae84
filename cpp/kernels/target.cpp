#include REGARD_TARGET_HEADER

#include "families.hpp"

#define REGARD_TEXT_OF(name) #name
#define REGARD_TEXT(name) REGARD_TEXT_OF(name)

namespace regard::REGARD_TARGET_NAME {

constexpr Target target = {
    .name = REGARD_TEXT(REGARD_TARGET_NAME),
    .vector_bytes = kVectorBytes,
    .float32 = {.attention = attention.float32,
                .backward = backward.float32,
                .decode = decode.float32,
                .int8 = int8,
                .matmul = matmul.float32,
                .rows = rows.float32,
                .roofline = roofline.float32,
                .summary = summary.float32,
                .tangent = tangent.float32},
    .float64 = {.attention = attention.float64,
                .backward = backward.float64,
                .decode = decode.float64,
                .int8 = int8,
                .matmul = matmul.float64,
                .rows = rows.float64,
                .roofline = roofline.float64,
                .summary = summary.float64,
                .tangent = tangent.float64},
};

}  // namespace regard::REGARD_TARGET_NAME
