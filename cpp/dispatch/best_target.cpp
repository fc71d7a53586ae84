// Prints the name of the best target that this CPU runs. CMake compiles and runs this program to learn what to compile.
#include <cstdio>

#include "cpu_features.cpp"

int main() {
#define REGARD_TARGET(name, architecture, features) \
  if (regard::cpu_runs(#architecture, features)) return std::puts(#name) < 0;
#include "../kernels/targets/targets.inc"
#undef REGARD_TARGET
  return 1;
}
