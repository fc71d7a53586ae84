#include REGARD_TARGET_HEADER

#include "families.hpp"

#define REGARD_TEXT_OF(name) #name
#define REGARD_TEXT(name) REGARD_TEXT_OF(name)

namespace regard::REGARD_TARGET_NAME {

constexpr Target target = {
    .name = REGARD_TEXT(REGARD_TARGET_NAME),
    .vector_bytes = kVectorBytes,
#define REGARD_FAMILY(name, Table) .name = name.float32,
    .float32 =
        {
#include "families.inc"
        },
#undef REGARD_FAMILY
#define REGARD_FAMILY(name, Table) .name = name.float64,
    .float64 =
        {
#include "families.inc"
        },
#undef REGARD_FAMILY
};

}  // namespace regard::REGARD_TARGET_NAME
