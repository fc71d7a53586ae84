// The interface that the extension module regard._openmp provides to this one, which links no
// OpenMP runtime itself. A pointer to it is passed in a PyCapsule.
#pragma once

namespace regard {

// The two modules may come from different builds: a change of the structure must change the name.
constexpr char kRegionCapsule[] = "regard._openmp.region.1";

struct ParallelRegion {
  // Runs body(context, thread) on at most `threads` threads, with the calling thread as thread 0,
  // and returns when all of them have returned. If the body of thread 0 returns false, it leaves
  // without the others: in a child that was forked inside the region, where they do not exist.
  void (*run)(int threads, bool (*body)(void* context, int thread), void* context);

  // Whether the calling thread is already in a region, started by any library.
  bool (*is_inside)();

  // Whether a forked child may run regions after its parent has used the runtime, on any thread.
  bool survives_forks;

  const char* runtime;  // the name of its file
  const char* path;
  const char* version;  // of the OpenMP specification
};

}  // namespace regard
