// The constants of quantizing to 8 bits.
#pragma once

namespace regard {
namespace {

constexpr float kInt8Steps = 127;
// 1.5 * 2^23: the low bits of a sum are the integer, and none is left for a fraction.
constexpr float kRoundToInteger = 12582912.0f;

}  // namespace
}  // namespace regard
