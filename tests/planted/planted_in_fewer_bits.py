"""Bugs in caches that store float8 and 4 bits."""

from planted_bug import Bug

KERNELS = "cpp/kernels/"
CACHE = "python/regard/_cache/"
TESTS = ("tests/cache/test_cache_fewer_bits.py",)

BUGS = [
    Bug(
        "upper halves of bytes count 16 times in scores of one row",
        KERNELS + "decode/nibble_scores.hpp",
        "sums[v][r] + (sixteens[v][r] >> 4);",
        "sums[v][r] + sixteens[v][r];",
        TESTS,
        "q4_1: a decode of one query for each key head",
    ),
    Bug(
        "steps that are apart in memory are read as one stretch",
        KERNELS + "decode/nibble_values.hpp",
        "} while (steps >> after & 1 && block.values.first[after] == next);",
        "} while (steps >> after & 1);",
        TESTS,
        "q4_1: a decode in pages of 16",
    ),
    Bug(
        "the minimum of a group is left out of the forward kernel's scores",
        KERNELS + "attention/plain_scores.hpp",
        "acc[r][v] = fma(load(sums_of_query + v * kLanes<T>), broadcast(minimums[r]), acc[r][v]);",
        "acc[r][v] = acc[r][v] + Vec<T>{} * broadcast(minimums[r]);",
        TESTS,
        "q4_1: a prompt",
    ),
    Bug(
        "sums of minimums are formed in a different order than in decodes",
        KERNELS + "attention/plain_values.hpp",
        "Vec<T>& part = parts[k % kParts][v];",
        "Vec<T>& part = parts[0][v];",
        TESTS,
        "q4_1: the bits of a token in a prompt and by itself",
    ),
    Bug(
        "a query that is not finite has finite scores",
        KERNELS + "groups_of_four_bits.hpp",
        "if (!is_finite) return {largest - largest + (largest - largest), T(0)};",
        "if (!is_finite) return {T(0), T(0)};",
        TESTS,
        "q4_1: inf in a query",
    ),
    Bug(
        "halves of float8 are rounded up",
        "cpp/simd/half.hpp",
        "byte = (magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;",
        "byte = (magnitude - 0x3c000000u + 0x80000u) >> 20;",
        TESTS,
        "float8: a value between two numbers, the lower of them even",
    ),
    Bug(
        "vectors of float8 keys are in the order of their rows",
        KERNELS + "decode/narrow_scores.hpp",
        "const int key = kMet<From> * i + v % kMet<From>;",
        "const int key = i + v % kMet<From> * kWidth;",
        TESTS,
        "float8: a decode",
    ),
    Bug(
        "values have the scales of keys",
        CACHE + "quantize.py",
        "zip(given, fixed, strict=True)",
        "zip(given, fixed[:1] * 2, strict=True)",
        TESTS,
        "float8 with value_scales",
    ),
    Bug(
        "a text joins a cache with other scales",
        CACHE + "entries.py",
        "        if value != wrong:",
        '        if value != wrong and name != "key_scales":',
        TESTS,
        "adopt a text of float8 from a cache with other key_scales",
    ),
]
