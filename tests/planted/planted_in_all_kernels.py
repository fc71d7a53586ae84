"""Bugs in code that several kernel families share, for which a build compiles much."""

from planted_bug import Bug

KERNELS = "cpp/kernels/"
SIMD = "cpp/simd/"
OPTIONS = ("tests/attention/test_options.py", "tests/attention/test_attention.py")
DROPOUT = ("tests/attention/test_dropout.py", "tests/streams/test_stream.py")
CACHE = ("tests/cache",)
SPARSE = ("tests/attention/test_mask_forms.py", "tests/cache/test_cache_masks.py")
FUNCTION = ("tests/attention/test_score_function.py",)

BUGS = [
    Bug(
        "a coefficient of 2^x has a wrong digit",
        SIMD + "exp.hpp",
        "2.40226468906e-1f",
        "2.40236468906e-1f",
        ("tests/attention/test_numerics.py", "tests/attention/test_attention.py"),
        "float32",
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
        "heads of a group share a row of the mask",
        KERNELS + "strips/rows.hpp",
        "mask.row_stride == 0 && (mask.head_stride == 0 || problem.heads == problem.kv_heads)",
        "mask.row_stride == 0",
        OPTIONS,
        "groups, and a mask for each head that all queries share",
    ),
    Bug(
        "a float mask is lost together with slopes",
        KERNELS + "strips/tiles.hpp",
        "add_alibi<Shape>(strip, key, is_set, tile);",
        "add_alibi<Shape>(strip, key, false, tile);",
        OPTIONS,
        "a float mask and alibi_slopes together, except in a decode",
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
        ("tests/cache/test_cache_fewer_bits.py", *CACHE),
        "an int8 cache whose head_dim is an odd multiple of less than a vector",
    ),
    Bug(
        "a strip sees only the first span of a block",
        KERNELS + "strips/sparse_mask.hpp",
        "span + 1 != run->end && span[1].begin < keys.end;",
        "false;",
        SPARSE,
        "a sparse mask with two ranges within one block of keys",
    ),
    Bug(
        "every query of a block has the bits of the first",
        KERNELS + "strips/sparse_mask.hpp",
        "span->block * mask.row_queries + strip.mask_queries[lane]",
        "span->block * mask.row_queries",
        SPARSE,
        "a sparse mask with partial blocks",
    ),
    Bug(
        "a chunk ends only if a block begins the next one",
        KERNELS + "strips/online_softmax.hpp",
        "if (chunk == strip.chunk) return;",
        "if (key % Shape::kChunkKeys != 0) return;",
        SPARSE,
        "bits, with a sparse mask that hides the first block of a chunk",
    ),
    Bug(
        "a piece that a query does not see counts as one with its gradient",
        KERNELS + "backward/backward.hpp",
        "!sees_keys(problem.forward, strip, task.chunk.begin, work.piece.begin);",
        "!overlaps(strip.seen, task.chunk.begin, work.piece.begin);",
        SPARSE,
        "gradients with a sparse mask that hides a piece within a chunk of keys",
    ),
    Bug(
        "steps whose end a mask hides count as wholly visible",
        KERNELS + "decode/decode_masks.hpp",
        "sight.keys.begin == keys.begin &&\n                 sight.keys.end == keys.end;",
        "true;",
        SPARSE,
        "a decode with a sparse mask whose ranges begin or end within a step",
    ),
    Bug(
        "the weights of a block's gathered keys are those of other keys",
        KERNELS + "attention/gathered.hpp",
        "load<T>(weights + own.at[i] * kPitch + v)",
        "load<T>(weights + i * kPitch + v)",
        SPARSE,
        "a prefill of selected keys",
    ),
    Bug(
        "distances count from one",
        KERNELS + "strips/bias.hpp",
        "clamp(problem.distances - 1 + distance,",
        "clamp(problem.distances + distance,",
        ("tests/attention/test_attention.py",),
        "distance_bias",
    ),
    Bug(
        "gradients of scores lose the scale of their head",
        KERNELS + "backward/gradients_of_scores.hpp",
        "load<T>(own + r * kWidth + v * kLanes<T>) * scale",
        "load<T>(own + r * kWidth + v * kLanes<T>)",
        ("tests/attention/test_derivatives.py",),
        "gradients with a scale for each head",
    ),
    Bug(
        "a function of scores gets the group's first head for each head",
        KERNELS + "strips/score_function.hpp",
        "(block.strip.first_row + tile.lane) % heads",
        "0",
        FUNCTION,
        "a score_function that depends on the head, if heads share keys",
    ),
]
