// A fiber: a stack, and the state needed to leave it and come back. On x86-64 a switch takes a few
// instructions; elsewhere it is a switch of the C library. The sanitizers are notified of every
// switch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// The race detector must not see accesses of the emulation itself.
#define EMULATION_UNWATCHED __attribute__((no_sanitize("thread"), noinline))

namespace emulation {

#if defined(__x86_64__)
extern "C" void emulation_switch(void** save, void* load);
asm(R"(.text
.type emulation_switch,@function
emulation_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emulation_switch,.-emulation_switch
)");

struct Context {
  void* stack_pointer = nullptr;

  void prepare(char* stack, std::size_t bytes, void (*entry)()) {
    const auto end = reinterpret_cast<std::uintptr_t>(stack + bytes) & ~std::uintptr_t{15};
    auto* top = reinterpret_cast<std::uintptr_t*>(end) - 2;
    *top = reinterpret_cast<std::uintptr_t>(entry);  // `ret` pops it, and leaves the stack as after a call
    for (int i = 0; i < 6; ++i) *--top = 0;
    stack_pointer = top;
  }
  EMULATION_UNWATCHED void switch_to(Context& other) { emulation_switch(&stack_pointer, other.stack_pointer); }
};
#else
struct Context {
  ucontext_t context;

  void prepare(char* stack, std::size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  EMULATION_UNWATCHED void switch_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

constexpr std::size_t kStackBytes = 256 << 10;

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack;
  const void* bottom = nullptr;  // of the stack, for AddressSanitizer
  std::size_t bytes = 0;
  void* fake_stack = nullptr;
  void* race_detector = nullptr;  // ThreadSanitizer's handle of this fiber

  Fiber() = default;
  Fiber(Fiber&&) = default;
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    if (stack && race_detector) __tsan_destroy_fiber(race_detector);
#endif
  }

  void prepare(void (*entry)()) {
    if (!stack) stack.reset(new char[kStackBytes]);
    bottom = stack.get();
    bytes = kStackBytes;
    fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack.get(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
    if (race_detector) __tsan_destroy_fiber(race_detector);
    race_detector = __tsan_create_fiber(0);
#endif
    context.prepare(stack.get(), kStackBytes, entry);
  }
};

// A fiber that ends never comes back.
EMULATION_UNWATCHED inline void switch_fibers(Fiber& from, Fiber& to, bool ends) {
  static_cast<void>(ends);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.race_detector, 1);  // 1: the switch itself orders nothing
#endif
  from.context.switch_to(to.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// To be called first on a new fiber. `main` is the fiber that started it.
inline void begin_fiber(Fiber& main) {
  static_cast<void>(main);
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom;
  std::size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!main.bytes) {
    main.bottom = bottom;
    main.bytes = bytes;
  }
#endif
}

// Hides reads and writes of the emulation itself from the race detector.
struct Unwatched {
#if defined(__SANITIZE_THREAD__)
  Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  ~Unwatched() {}
#endif
};

// Everything that happened before `release` of a point is visible after `acquire` of it.
inline void release(void* point) {
  static_cast<void>(point);
#if defined(__SANITIZE_THREAD__)
  __tsan_release(point);
#endif
}
inline void acquire(void* point) {
  static_cast<void>(point);
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(point);
#endif
}

}  // namespace emulation
