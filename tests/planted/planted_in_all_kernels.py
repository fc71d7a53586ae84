"""Bugs in what several families of kernels share, of which a build compiles much."""

from planted_bug import Bug

KERNELS = "cpp/kernels/"
SIMD = "cpp/simd/"
OPTIONS = ("tests/attention/test_options.py",)
DROPOUT = ("tests/attention/test_dropout.py", "tests/attention/test_stream.py")
CACHE = ("tests/cache",)

BUGS = [
    Bug(
        "a coefficient of 2^x has a wrong digit",
        SIMD + "exp2.hpp",
        "2.40229836276e-1f",
        "2.40239836276e-1f",
        ("tests/attention/test_numerics.py", "tests/attention/test_attention.py"),
        "512 bits, float32",
    ),
    Bug(
        "a subnormal float16 loses its leading bit",
        SIMD + "half.hpp",
        "magnitude < 0x38800000u",
        "magnitude < 0x38000000u",
        ("tests/attention/test_storage.py", "tests/cache/test_store_rows.py"),
        "results in float16 from 2^-15 to 2^-14: in last columns, or everywhere without AVX2",
    ),
    Bug(
        "an odd dimension of bfloat16 keeps the even one's bits",
        SIMD + "lane_parts.hpp",
        "kPart == 0 ? parts << 16 : parts & -65536",
        "kPart == 0 ? parts << 16 : parts",
        ("tests/attention/test_storage.py", "tests/attention/test_decode.py"),
        "a decode, or matmul of narrow weights, in bfloat16",
    ),
    Bug(
        "a byte keeps those below it",
        SIMD + "lane_parts.hpp",
        "return (lanes << (24 - 8 * kByte)) & kTop;",
        "return lanes << (24 - 8 * kByte);",
        ("tests/cache/test_cache_int8.py", "tests/attention/test_narrow_weights.py"),
        "without AVX2: a decode from an int8 cache, or matmul of int8 weights",
    ),
    Bug(
        "heads of a group share a row of the mask",
        KERNELS + "strips/mask_rows.hpp",
        "mask.row_stride == 0 && (mask.head_stride == 0 || problem.heads == problem.kv_heads)",
        "mask.row_stride == 0",
        OPTIONS,
        "groups, and a mask for each head that all queries share",
    ),
    Bug(
        "a float mask is lost beside slopes",
        KERNELS + "strips/tiles.hpp",
        "add_alibi<Shape>(strip, key, is_set, tile);",
        "add_alibi<Shape>(strip, key, false, tile);",
        OPTIONS,
        "a float mask and alibi_slopes together, beyond a decode",
    ),
    Bug(
        "queries after a window see no sink tokens",
        KERNELS + "strips/visibility.hpp",
        "if (seeing.begin > 0 || begin < strip.keep_first.end) return seeing;",
        "if (seeing.begin > 0) return seeing;",
        ("tests/cache/test_cache_window.py", *CACHE),
        "a cache with a window and sink tokens, and queries of several vectors",
    ),
    Bug(
        "a counter that begins within four keys has no successor",
        KERNELS + "strips/dropout.hpp",
        "(first_word == 0 ? 1 : 2)",
        "(first_word < 2 ? 1 : 2)",
        DROPOUT,
        "dropout whose origin is 1 beyond a multiple of 4",
    ),
    Bug(
        "the upper half of a seed is lost",
        KERNELS + "strips/dropout.hpp",
        "static_cast<std::uint32_t>(seed >> 32)",
        "0u",
        DROPOUT,
        "a dropout_seed of 2^32 or more",
    ),
    Bug(
        "a rotation within a vector has a wrong sign",
        KERNELS + "hadamard.hpp",
        "      x[d + half] = a - b;",
        "      x[d + half] = b - a;",
        ("tests/cache/test_cache_int8.py", *CACHE),
        "an int8 cache whose head_dim is an odd multiple of less than a vector",
    ),
    Bug(
        "the page after those evicted counts as one of them",
        KERNELS + "kv_rows.hpp",
        "page >= rows.evicted.begin && page < rows.evicted.end",
        "page >= rows.evicted.begin && page <= rows.evicted.end",
        ("tests/cache/test_cache_files.py", *CACHE),
        "a cache that has evicted pages, where rows are copied",
    ),
]
