// Threads with small stacks.
#pragma once

namespace regard {

// Starts a detached thread that calls run(argument), which must not return and must not throw. False if the
// system has no more threads or memory to give.
//
// Its stack takes 1 MiB and not the usual 8: the frames of kernels are below 20 KB, and where a limit counts
// what is reserved (ulimit -v, RLIMIT_DATA), the stacks of 64 threads would take 512 MB from the arrays.
bool start_thread(void (*run)(void* argument), void* argument);

}  // namespace regard
