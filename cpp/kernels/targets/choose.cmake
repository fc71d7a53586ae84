# Choose the rows of targets.inc that this build compiles, as REGARD_TARGETS says. Set
#   processor             the architecture that is compiled for, in the spelling of targets.inc
#   REGARD_TARGET_NAMES   the chosen targets, best first
#   NAME_features         the features of each of them, as options of the compiler
# and write the chosen rows to compiled_targets.inc, from which the dispatch selects.
include(CheckCXXSourceCompiles)
set(processor "${CMAKE_SYSTEM_PROCESSOR}")
if(APPLE AND CMAKE_OSX_ARCHITECTURES)
  set(processor "${CMAKE_OSX_ARCHITECTURES}")
  list(LENGTH processor count)
  if(count GREATER 1)
    message(FATAL_ERROR
      "the kernels are compiled for one architecture at a time; CMAKE_OSX_ARCHITECTURES is "
      "\"${CMAKE_OSX_ARCHITECTURES}\".\nBuild a wheel for each of them.")
  endif()
endif()
string(TOLOWER "${processor}" processor)
if(EMSCRIPTEN) # its toolchain file says x86
  set(processor wasm32)
endif()
string(REPLACE "amd64" "x86_64" processor "${processor}")
string(REPLACE "arm64" "aarch64" processor "${processor}")

set(list ${CMAKE_CURRENT_LIST_DIR}/targets.inc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
file(STRINGS ${list} rows REGEX "^REGARD_TARGET\\(")
set(listed "") # every target of the list
foreach(row IN LISTS rows)
  if(NOT row MATCHES "^REGARD_TARGET\\(([a-z0-9_]+), ([a-z0-9_]+), \"([^\"]*)\"\\)")
    message(FATAL_ERROR "targets.inc: cannot read the row ${row}")
  endif()
  set(name ${CMAKE_MATCH_1})
  list(APPEND listed ${name})
  set(${name}_row "${row}")
  set(${name}_architecture ${CMAKE_MATCH_2})
  string(REGEX REPLACE "([^ ]+)" "${REGARD_OPTION}-m\\1" ${name}_features "${CMAKE_MATCH_3}")
endforeach()

set(chosen "${REGARD_TARGETS}")
if(chosen MATCHES "^(native)?$")
  # Asked at every configuration, since a build folder may have come from another machine.
  set(best "")
  if(NOT CMAKE_CROSSCOMPILING)
    try_run(status compiles ${PROJECT_BINARY_DIR}/best_target
            ${PROJECT_SOURCE_DIR}/cpp/dispatch/best_target.cpp RUN_OUTPUT_VARIABLE best)
    string(STRIP "${best}" best)
  endif()
  set(chosen ${best} baseline)
  if(NOT best IN_LIST listed)
    message(STATUS "The best target of this CPU is not known, so all of them are compiled")
    set(chosen all)
  endif()
endif()
if(chosen STREQUAL "all")
  set(chosen "")
  foreach(name IN LISTS listed)
    if("${${name}_architecture}" MATCHES "^(any|${processor})$")
      list(APPEND chosen ${name})
    endif()
  endforeach()
endif()

foreach(name IN LISTS chosen)
  if(NOT name IN_LIST listed)
    list(JOIN listed ", " names)
    message(FATAL_ERROR
      "REGARD_TARGETS must be native (the best target of this CPU, and baseline), all (of the processor), "
      "or some of ${names}, separated by semicolons; got \"${REGARD_TARGETS}\"")
  elseif(NOT "${${name}_architecture}" MATCHES "^(any|emulated|${processor})$")
    message(FATAL_ERROR
      "REGARD_TARGETS names ${name}, a target of ${${name}_architecture}, "
      "but regard is being compiled for ${processor}")
  endif()
endforeach()

set(REGARD_TARGET_NAMES "")
set(rows_compiled "")
foreach(name IN LISTS listed)
  if(NOT name IN_LIST chosen)
    continue()
  endif()
  if(${name}_features)
    set(CMAKE_REQUIRED_FLAGS "${${name}_features}")
    check_cxx_source_compiles("int main() { return 0; }" REGARD_COMPILES_${name})
    unset(CMAKE_REQUIRED_FLAGS)
  endif()
  if(NOT ${name}_features OR REGARD_COMPILES_${name})
    list(APPEND REGARD_TARGET_NAMES ${name})
    string(APPEND rows_compiled "${${name}_row}\n")
  elseif(name IN_LIST REGARD_TARGETS)
    message(FATAL_ERROR
      "REGARD_TARGETS names ${name}, but the compiler does not accept ${${name}_features}.\n"
      "Leave it out, or set CXX to a newer compiler.")
  else()
    message(WARNING "${name} is left out: the compiler does not accept ${${name}_features}")
  endif()
endforeach()
list(JOIN REGARD_TARGET_NAMES ", " names)
message(STATUS "Targets: ${names}")
file(CONFIGURE OUTPUT ${REGARD_TARGET_LIST}/compiled_targets.inc CONTENT "${rows_compiled}" @ONLY)
