// The floating-point mode of the calling thread: how it rounds, and whether it treats subnormal
// numbers as zeros. Each thread has its own mode, which it inherits from the thread that started
// it.
#pragma once

#include <cstdint>

namespace regard {

#if defined(__x86_64__)

// MXCSR without the status flags, which arithmetic sets.
inline std::uint64_t float_mode() { return __builtin_ia32_stmxcsr() & 0xffc0u; }
inline void set_float_mode(std::uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<std::uint32_t>(mode)); }

#elif defined(__aarch64__)

inline std::uint64_t float_mode() {
  std::uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(std::uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }

#else

inline std::uint64_t float_mode() { return 0; }
inline void set_float_mode(std::uint64_t) {}

#endif

// Lets the calling thread compute in a mode, and restores its own mode.
class InFloatMode {
 public:
  explicit InFloatMode(std::uint64_t mode) : before_(float_mode()), differs_(mode != before_) {
    if (differs_) set_float_mode(mode);
  }
  InFloatMode(const InFloatMode&) = delete;
  InFloatMode& operator=(const InFloatMode&) = delete;
  ~InFloatMode() {
    if (differs_) set_float_mode(before_);
  }

 private:
  const std::uint64_t before_;
  const bool differs_;
};

}  // namespace regard
