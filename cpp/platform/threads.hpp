// Threads with small stacks.
#pragma once

namespace regard {

// Starts a detached thread that calls run(argument), which must not throw.
// False if the system cannot provide more threads or memory.
//
// Its stack takes 1 MiB instead of the usual 8: the frames of kernels are below 20 KB. If a limit
// counts reserved memory (ulimit -v, RLIMIT_DATA), the usual stacks of 64 threads would take 512 MB
// from the arrays.
bool start_thread(void (*run)(void* argument), void* argument);

}  // namespace regard
