// Modules for the main interpreter only: they keep state for the whole process. pybind11 itself
// waits forever for the GIL if a subinterpreter imports a module before Python 3.12.
//
//   #define PyInit__core regard_init_core        // what PYBIND11_MODULE(_core, ...) defines
//   PYBIND11_MODULE(_core, module, ...) { ... }
//   #undef PyInit__core
//   REGARD_MAIN_INTERPRETER_ONLY(_core, regard_init_core)
#pragma once

#include <pybind11/pybind11.h>

#define REGARD_MAIN_INTERPRETER_ONLY(name, init)                                                             \
  extern "C" PYBIND11_EXPORT PyObject* PyInit_##name() {                                                     \
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) return init();                                \
    PyErr_SetString(PyExc_ImportError, "regard." #name " can be imported only by the main interpreter of a " \
                                       "process, got an import in a subinterpreter: compute in the main "    \
                                       "interpreter or in another process");                                 \
    return nullptr;                                                                                          \
  }
