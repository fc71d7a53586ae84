// What a row of targets.inc asks of the architecture, for those who expand the list.
#pragma once

#if defined(__x86_64__)
#define REGARD_ON_x86_64(...) __VA_ARGS__
#else
#define REGARD_ON_x86_64(...)
#endif
#if defined(__aarch64__)
#define REGARD_ON_aarch64(...) __VA_ARGS__
#else
#define REGARD_ON_aarch64(...)
#endif
#define REGARD_ON_any(...) __VA_ARGS__
