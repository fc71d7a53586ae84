// A compile-time number as an object: loops and tiles are compiled for each value that a call may
// have.
#pragma once

namespace regard {
namespace {

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

}  // namespace
}  // namespace regard
