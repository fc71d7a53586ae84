// The extension module regard._openmp: the only part of regard that links an OpenMP runtime. It is
// loaded when the threading layer `openmp` is requested, and provides parallel regions to
// regard._core.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>

#include <csetjmp>
#include <cstring>

#include "../dispatch/threads/region.hpp"

namespace {

using regard::ParallelRegion;

void* runtime = nullptr;  // the library, as dlopen returns it

// Resolved in the loaded runtime, which may be older or newer than the runtime of the build.
int (*pause_all)(omp_pause_resource_t) = nullptr;

// A forked child has only the forking thread. libgomp would wait for the other threads of its team,
// so its teams are dissolved before a fork. Inside a region the runtime refuses this, and nothing
// happens.
void dissolve_team() { pause_all(omp_pause_soft); }

// The OpenMP specification that the runtime follows, determined by functions that a version
// introduced. Runtimes do not report their own versions.
const char* specification() {
  constexpr struct {
    const char* function;
    const char* version;
  } kFirst[] = {{"omp_get_uid_from_device", "6.0"},
                {"omp_display_env", "5.1"},
                {"omp_pause_resource_all", "5.0"},
                {"omp_get_num_places", "4.5"}};
  for (const auto& first : kFirst)
    if (dlsym(runtime, first.function)) return first.version;
  return "4.0 or older";
}

void run(int threads, bool (*body)(void* context, int thread), void* context) {
  // The end of a region waits for all threads of its team. In a child that was forked inside the
  // region they do not exist, so its thread jumps out over the runtime's own frames.
  std::jmp_buf forked;
  if (setjmp(forked) != 0) return;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    if (!body(context, thread) && thread == 0) std::longjmp(forked, 1);
  }
}

bool is_inside() { return omp_in_parallel() != 0; }

ParallelRegion region = {run, is_inside, false, "", "", ""};

// Finds the runtime that the loader chose, its name and version, and its behavior at forks.
bool examine_runtime() {
  Dl_info found;
  if (!dladdr(reinterpret_cast<void*>(&omp_get_max_threads), &found) || !found.dli_fname) return false;
  runtime = dlopen(found.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (!runtime) return false;
  region.path = found.dli_fname;
  const char* slash = std::strrchr(found.dli_fname, '/');
  region.runtime = slash ? slash + 1 : found.dli_fname;
  region.version = specification();
  // LLVM's and Intel's runtimes renew their threads in a child, but may leave a lock there that
  // another thread held.
  if (dlsym(runtime, "__kmpc_fork_call")) return true;
  if (void* function = dlsym(runtime, "omp_pause_resource_all")) {
    pause_all = reinterpret_cast<decltype(pause_all)>(function);
    region.survives_forks = pthread_atfork(dissolve_team, nullptr, nullptr) == 0;
  }
  return true;
}

int execute(PyObject* module) {
  if (!runtime && !examine_runtime()) {
    PyErr_SetString(PyExc_ImportError, "the loaded OpenMP runtime cannot be found");
    return -1;
  }
  PyObject* capsule = PyCapsule_New(&region, regard::kRegionCapsule, nullptr);
  if (!capsule) return -1;
  const int status = PyModule_AddObjectRef(module, "region", capsule);
  Py_DECREF(capsule);
  return status;
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(execute)},
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_openmp", "Parallel regions of an OpenMP runtime.", 0, nullptr, slots,
    nullptr,               nullptr,   nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__openmp() { return PyModuleDef_Init(&definition); }
