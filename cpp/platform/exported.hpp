// Marks what other programs find by its name in the compiled module.
#pragma once

#if defined(_WIN32)
#define REGARD_EXPORTED __declspec(dllexport)
#else
#define REGARD_EXPORTED __attribute__((visibility("default")))
#endif
