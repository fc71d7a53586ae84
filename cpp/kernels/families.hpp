// The tables that the sources of a target define, one per family. target.cpp gathers them.
#pragma once

#include "kernel_table.hpp"

namespace regard::REGARD_TARGET_NAME {

#define REGARD_FAMILY(name, Table) extern const PerScalar<Table> name;
#include "families.inc"
#undef REGARD_FAMILY

extern const Target target;

}  // namespace regard::REGARD_TARGET_NAME
