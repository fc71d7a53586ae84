# Clang as a compiler for Pyodide 0.27, whose ABI is that of Emscripten 3.1.58: see build.py, which sets the variables.
set(CMAKE_SYSTEM_NAME Emscripten)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(EMSCRIPTEN 1) # CMake 4.2 and newer set these two
set(UNIX 1)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_CXX_COMPILER_TARGET wasm32-unknown-emscripten)
set(CMAKE_AR llvm-ar-19)
set(CMAKE_RANLIB llvm-ranlib-19)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # Only Pyodide has the C library.
set(CMAKE_SYSROOT $ENV{REGARD_PYODIDE}/sysroot)
# Exceptions are those of JavaScript, as in Pyodide itself.
set(CMAKE_CXX_FLAGS_INIT "-nostdinc++ -isystem ${CMAKE_SYSROOT}/c++ -isystem ${CMAKE_SYSROOT}/include/compat \
-fexceptions -mllvm -enable-emscripten-cxx-exceptions")
set_property(GLOBAL PROPERTY TARGET_SUPPORTS_SHARED_LIBS TRUE)
# Everything that a module does not define, Pyodide's main module provides when it is loaded.
set(CMAKE_CXX_CREATE_SHARED_MODULE "<CMAKE_CXX_COMPILER> --target=wasm32-unknown-emscripten -shared -nostdlib \
-Wl,--experimental-pic,--no-entry,--strip-debug,--export-if-defined=__wasm_call_ctors,--unresolved-symbols=import-dynamic \
-o <TARGET> <OBJECTS>")
