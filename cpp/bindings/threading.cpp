#include "threading.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "../dispatch/threads/count.hpp"
#include "../dispatch/threads/layer.hpp"
#include "../dispatch/threads/team.hpp"
#include "arguments.hpp"

// Marks functions that other programs find by name in the compiled module.
#if defined(_WIN32)
#define REGARD_EXPORTED __declspec(dllexport)
#else
#define REGARD_EXPORTED __attribute__((visibility("default")))
#endif

namespace regard {
namespace {

constexpr char kVariable[] = "REGARD_THREADING_LAYER";
constexpr const char* kNames[] = {"pool", "openmp", "serial"};  // in the order of ThreadingLayer

std::atomic<const char*> layer_reason{"default"};

std::string name_of(ThreadingLayer layer) { return kNames[static_cast<int>(layer)]; }

ThreadingLayer layer_named(const char* argument, const std::string& name) {
  for (const ThreadingLayer layer :
       {ThreadingLayer::pool, ThreadingLayer::openmp, ThreadingLayer::serial})
    if (name == name_of(layer)) return layer;
  throw py::value_error(std::string(argument) + " must be 'pool', 'openmp' or 'serial', got '" + name +
                        "'");
}

[[noreturn]] void raise_import_error(py::error_already_set& cause, const std::string& message) {
  cause.restore();
  py::raise_from(PyExc_ImportError, message.c_str());
  throw py::error_already_set();
}

void load_openmp() {
  if (loaded_region()) return;
  try {
    const py::object capsule = py::module_::import("regard._openmp").attr("region");
    void* region = PyCapsule_GetPointer(capsule.ptr(), kRegionCapsule);
    if (!region) throw py::error_already_set();
    load_region(*static_cast<const ParallelRegion*>(region));
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_ModuleNotFoundError))
      raise_import_error(error,
                         "the threading layer 'openmp' is not part of this build of regard. Build it on a "
                         "system on which CMake finds OpenMP (GCC includes it; for Clang install libomp-dev) "
                         "with: pip install -Ccmake.define.REGARD_OPENMP=ON .");
    if (error.matches(PyExc_ImportError))
      raise_import_error(error, "the threading layer 'openmp' needs an OpenMP runtime, which regard does not "
                                "include (" + text_of(error.value()) +
                                "). Install it, for example with: apt-get install libgomp1, or dnf install "
                                "libgomp, or conda install libgomp");
    throw;
  }
}

void load(ThreadingLayer layer) {
  if (layer == ThreadingLayer::openmp) load_openmp();
}

// If no layer has been set, sets the environment's layer.
void ensure_layer() {
  if (is_layer_chosen()) return;
  const char* name = std::getenv(kVariable);
  const bool is_named = name && *name;
  const ThreadingLayer layer = is_named ? layer_named(kVariable, name) : ThreadingLayer::pool;
  load(layer);
  if (choose_first_layer(layer) && is_named) layer_reason = kVariable;
}

void warn_if_left_alone() {
  static std::atomic<bool> warned{false};
  if (!is_left_alone() || warned.exchange(true)) return;
  if (PyErr_WarnEx(PyExc_RuntimeWarning,
                   "this process was forked from a process that computed with an OpenMP runtime whose "
                   "threads do not survive a fork: regard uses one thread here. The threading layer "
                   "'pool' has no such limit",
                   1) != 0)
    throw py::error_already_set();
}

int number_of_threads(py::handle threads) {
  const std::int64_t count = integer_of("threads", threads);
  if (count < 1)
    throw py::value_error("threads must be at least 1, got " + std::to_string(count));
  return static_cast<int>(count < 65536 ? count : 65536);
}

}  // namespace

int thread_count_of(py::handle threads) {
  const int count = threads.is_none() ? default_thread_count() : number_of_threads(threads);
  ensure_layer();
  switch (threading_layer()) {
    case ThreadingLayer::serial:
      return 1;
    case ThreadingLayer::openmp:
      warn_if_left_alone();
      break;
    case ThreadingLayer::pool:
      break;
  }
  return count;
}

void set_num_threads(py::handle threads) {
  set_thread_count(threads.is_none() ? 0 : number_of_threads(threads));
}

std::string num_threads_reason() {
  ensure_layer();
  if (threading_layer() == ThreadingLayer::serial) return "threading layer serial";
  return default_thread_count_reason();
}

void set_threading_layer(py::handle name) {
  if (!PyUnicode_Check(name.ptr()))
    throw py::type_error("name must be 'pool', 'openmp' or 'serial', got " + kind_of(name));
  const ThreadingLayer layer = layer_named("name", text_of(name));
  bool chosen = may_choose_layer(layer);
  if (chosen) {
    load(layer);
    chosen = choose_layer(layer);
  }
  if (!chosen)
    throw std::runtime_error("the threading layer must be set before the first call that uses several "
                             "threads, which '" + name_of(threading_layer()) + "' has run; got '" + name_of(layer) +
                             "'. Set it earlier, or in the environment variable " + kVariable);
  layer_reason = "set_threading_layer";
}

py::dict threading_layer_info() {
  ensure_layer();
  const ThreadingLayer layer = threading_layer();
  py::dict info;
  info["name"] = name_of(layer);
  info["reason"] = layer_reason.load();
  const ParallelRegion* region = layer == ThreadingLayer::openmp ? loaded_region() : nullptr;
  info["runtime"] = region ? py::object(py::str(region->runtime)) : py::none();
  info["path"] = region ? py::object(py::str(region->path)) : py::none();
  info["version"] = region ? py::object(py::str(region->version)) : py::none();
  return info;
}

void exchange_threading_layer(const std::string& name) {
  const ThreadingLayer layer = layer_named("name", name);
  load(layer);
  exchange_layer(layer);
}

}  // namespace regard

// For threadpoolctl (python/regard/_runtime/threads.py), which reads and limits the number of
// threads through these functions. It restores the number that it read, which is 0 if the
// environment's number is invalid; the next call reports that.
extern "C" {

REGARD_EXPORTED int regard_get_num_threads() {
  try {
    return regard::default_thread_count();
  } catch (...) {
    return 0;
  }
}

REGARD_EXPORTED void regard_set_num_threads(int threads) {
  regard::limit_thread_count(threads);
}

}  // extern "C"
