// What the extension module regard._openmp offers to this one, which links no OpenMP runtime itself. A
// pointer to this passes from one to the other in a PyCapsule.
#pragma once

namespace regard {

// Part of the module may be of another build: a change of the structure changes the name.
constexpr char kRegionCapsule[] = "regard._openmp.region.1";

struct ParallelRegion {
  // Runs body(context, thread) on at most `threads` threads, the calling one being thread 0, and returns
  // when all of them have returned. Where the body of thread 0 returns false, it leaves without the others:
  // in a child that was forked inside the region, where they do not exist.
  void (*run)(int threads, bool (*body)(void* context, int thread), void* context);

  // Whether the calling thread computes in a region already, of whichever program.
  bool (*is_inside)();

  // Whether a forked child may run regions in which its parent has used the runtime, on whichever thread.
  bool survives_forks;

  const char* runtime;  // the name of its file
  const char* path;
  const char* version;  // of the OpenMP specification
};

}  // namespace regard
