// Constants for 8-bit quantization.
#pragma once

namespace regard {
namespace {

constexpr float kInt8Steps = 127;
// 1.5 * 2^23: the low bits of a sum are the integer, and no bits are left for a fraction.
constexpr float kRoundToInteger = 12582912.0f;

}  // namespace
}  // namespace regard
