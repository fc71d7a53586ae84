# Run as a test: what REGARD_TARGETS compiles, and what it refuses. Nothing is compiled but what a configuration tries.
#   cmake -DSOURCE=folder -DBUILD=folder -DGENERATOR=Ninja -DCXX=compiler -P check_choice.cmake
cmake_minimum_required(VERSION 3.18...3.31)

# The first argument is a regular expression that the output must match, of which any space may be a line break; the
# others are arguments of CMake.
function(expect wanted)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
                          -DREGARD_CPP_TESTS=ON ${ARGN}
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT output MATCHES "${wanted}")
    message(SEND_ERROR "${ARGN}: expected \"${wanted}\", got ${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${BUILD})
expect("Targets: [a-z0-9_, ]*baseline --") # a new folder
if(NOT output MATCHES "Targets: ([a-z0-9_]+, )?baseline --")
  message(SEND_ERROR "more than the best target and the baseline are compiled: ${output}")
endif()
expect("Targets: baseline --" -DREGARD_TARGETS=baseline)
expect("must be native .* or some of x86_v4, .*; got \"baseline\;x86_v9\"" "-DREGARD_TARGETS=baseline\;x86_v9")
expect("got \"baseline\;native\"" "-DREGARD_TARGETS=baseline\;native")
cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
if(host MATCHES "^(x86_64|AMD64)$")
  expect("Targets: x86_v4, x86_v3, baseline --" -DREGARD_TARGETS=all)
  expect("Targets: x86_v4, baseline --" "-DREGARD_TARGETS=baseline\;x86_v4") # in the order of the list
  expect("names neon, a target of aarch64, but regard is being compiled for x86_64" -DREGARD_TARGETS=neon)
  # A build folder from a machine with another CPU.
  expect("Targets: [a-z0-9_, ]*baseline --" -DREGARD_TARGETS=native)
  set(ENV{REGARD_DISABLE_CPU_FEATURES} "avx2 avx512f")
  expect("Targets: baseline --")
  expect("x86_v4 is left out: .* Targets: x86_v3, baseline --" -DREGARD_TARGETS=all -DREGARD_COMPILES_x86_v4=OFF)
  expect("names x86_v4, but the compiler does not accept -mavx512f" -DREGARD_TARGETS=x86_v4)
else()
  expect("names x86_v3, a target of x86_64" -DREGARD_TARGETS=x86_v3)
endif()
