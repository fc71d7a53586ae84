# Run as a test: the objects of a target must define its tables and nothing that the linker could share with another
# target. They may reference only these tables and memory and math functions of the C library.
#   cmake -DNM=nm -DTARGET=x86_v3 "-DFAMILIES=decode|rows" "-DOBJECTS=path|path" -P check_symbols.cmake
string(REPLACE "|" ";" objects "${OBJECTS}")
string(REPLACE "|" ";" missing "target|${FAMILIES}")
execute_process(COMMAND ${NM} -C --extern-only ${objects} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "\n+" ";" symbols "${symbols}")
foreach(symbol IN LISTS symbols)
  string(STRIP "${symbol}" symbol)
  if(symbol MATCHES "^[0-9a-f]+ [DR] regard::${TARGET}::([a-z0-9]+)$")
    list(REMOVE_ITEM missing ${CMAKE_MATCH_1})
  elseif(NOT symbol MATCHES "^U regard::${TARGET}::(${FAMILIES})$"
         AND NOT symbol MATCHES "^U (log2|memcpy|memset|memmove|_GLOBAL_OFFSET_TABLE_)$"
         AND NOT symbol MATCHES "^(.*\\.o:)?$")
    message(SEND_ERROR "${TARGET}: unexpected symbol: ${symbol}")
  endif()
endforeach()
if(missing)
  message(SEND_ERROR "${TARGET}: missing tables: ${missing}")
endif()
