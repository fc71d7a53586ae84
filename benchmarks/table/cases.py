"""The table: everything that is timed during development."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.table.attention import Backward, Tangent, Variant
from benchmarks.table.caches import Append, CachedAttention
from benchmarks.table.stages import ApplyMask, Matmul, Scale, Softmax
from regard._bench.problems import CALL, DECODE, FORWARD, Attention, Case, Group

BACKWARD = Group("backward", "GFLOP/s", "fma peak")
TRAINING = Group("forward + backward", "GFLOP/s", "fma peak")
PRODUCT = Group("matmul", "GFLOP/s", "fma peak")
SOFTMAX = Group("softmax", "GB/s")
ELEMENTWISE = Group("scale and mask", "GB/s")


@dataclass(frozen=True)
class Comparison:
    """A problem whose time in regard is compared with the time of a reference problem.

    The result is the ratio of their times, or its inverse if `is_speed`. If `for_equal_work`, the
    ratio is divided by the ratio of their operations. `threads` are the numbers of threads for
    both, if they differ from the run's number. A comparison that is `only_by_name` needs much
    memory and disk space.
    """

    name: str
    problem: Any
    reference: Any
    about: str
    is_speed: bool = False
    for_equal_work: bool = False
    threads: tuple[int, int] | None = None
    is_quick: bool = False
    only_by_name: bool = False


def _square(
    batch: int,
    heads: int,
    length: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    is_causal: bool = False,
) -> Attention:
    kv_heads = heads if kv_heads is None else kv_heads
    return Attention(batch, heads, kv_heads, length, length, head_dim, is_causal=is_causal)


def _forward(problem: Attention, about: str = "", *, quick: bool) -> Case:
    return Case(problem.name, FORWARD, problem, about, quick)


def _decode(batch: int, heads: int, kv_heads: int, kv_len: int, *, quick: bool = False) -> Case:
    problem = Attention(batch, heads, kv_heads, 1, kv_len, 128)
    name = f"decode {batch}x{heads}/{kv_heads}x{kv_len}x128"
    about = f"{problem.bytes / 1e6:.0f} MB of keys and values"
    return Case(name, DECODE, problem, about, quick)


def _matmul(size: int, *, quick: bool = False) -> Case:
    return Case(f"matmul {size}", PRODUCT, Matmul(size, size, size), "square matrices", quick)


def _trained(
    batch: int, heads: int, length: int, head_dim: int, *, is_causal: bool = False
) -> Backward:
    return Backward(batch, heads, heads, length, length, head_dim, is_causal=is_causal)


def _backward(problem: Backward, *, quick: bool) -> Case:
    return Case(f"backward {problem.name}", BACKWARD, problem, "only the gradients", quick)


def _training(problem: Backward, *, quick: bool) -> Case:
    name = f"forward + backward {problem.name}"
    about = "the output and the gradients"
    return Case(name, TRAINING, replace(problem, with_forward=True), about, quick)


_TRAINED = (
    (_trained(8, 12, 128, 64), True),
    (_trained(1, 12, 512, 64), False),
    (_trained(1, 12, 1024, 64, is_causal=True), True),
    (_trained(1, 8, 2048, 64), False),
    (_trained(1, 8, 2048, 128, is_causal=True), False),
    (_trained(4, 8, 1024, 128), False),
)


CASES: Sequence[Case] = (
    Case(
        "notebook 6x2",
        CALL,
        Attention(1, 1, 1, 6, 6, 2),
        "6 tokens: the overhead of a call",
        True,
    ),
    Case(
        "early 1x32/8x128x128",
        CALL,
        Attention(1, 32, 8, 1, 128, 128, is_resident=True),
        "a token early in decoding: keys and values in the cache",
        True,
    ),
    _forward(_square(1, 8, 64, 64), quick=True),
    _forward(_square(8, 12, 128, 64), "a BERT batch", quick=True),
    _forward(_square(1, 12, 512, 64), quick=True),
    _forward(_square(1, 12, 1024, 64, is_causal=True), "GPT-2", quick=True),
    _forward(
        _square(1, 32, 2048, 128, kv_heads=8, is_causal=True),
        "Llama: 4 query heads for each key head",
        quick=False,
    ),
    _forward(_square(1, 8, 8192, 128, is_causal=True), quick=False),
    _forward(_square(1, 8, 8192, 64), quick=False),
    _forward(_square(1, 8, 4096, 128), quick=False),
    _forward(_square(8, 16, 197, 64), "a ViT batch: 197 is not a multiple of any tile", quick=True),
    _forward(_square(2, 8, 4096, 40), "diffusion: a head_dim of 40", quick=False),
    *(_backward(problem, quick=quick) for problem, quick in _TRAINED),
    *(_training(problem, quick=quick) for problem, quick in _TRAINED),
    _decode(1, 32, 8, 4096, quick=True),
    _decode(8, 32, 8, 4096),
    _decode(1, 32, 32, 16384),
    _matmul(256),
    _matmul(512, quick=True),
    _matmul(1024),
    _matmul(2048),
    Case(
        "matmul 96x128x64x128",
        PRODUCT,
        Matmul(128, 64, 128, batch=96),
        "96 products of 128x64 and 64x128 matrices",
        True,
    ),
    Case(
        "softmax 4096x1024",
        SOFTMAX,
        Softmax(4096, 1024),
        "the matrix read once and written once",
        True,
    ),
    Case(
        "softmax 4096x1024 axis 0",
        SOFTMAX,
        Softmax(4096, 1024, axis=0),
        "along the axis that is not contiguous",
    ),
    Case("scale 4096x1024", ELEMENTWISE, Scale(4096, 1024), "read once and written once"),
    Case("mask 4096x1024", ELEMENTWISE, ApplyMask(4096, 1024), "scores and a bool mask"),
)

COMPARISONS: Sequence[Comparison] = (
    Comparison(
        "causal 1x12x1024x64",
        _square(1, 12, 1024, 64, is_causal=True),
        _square(1, 12, 1024, 64),
        "time relative to the full square",
        is_quick=True,
    ),
    Comparison(
        "causal 1x8x4096x64",
        _square(1, 8, 4096, 64, is_causal=True),
        _square(1, 8, 4096, 64),
        "time relative to the full square",
    ),
    Comparison(  # rows of a head are 4 KB apart, so they share few sets of the L1 cache
        "strided 1x16x1024x64",
        Variant(1, 16, 16, 1024, 1024, 64, is_strided=True),
        _square(1, 16, 1024, 64),
        "time of (B, L, H, D) views relative to contiguous arrays",
        is_quick=True,
    ),
    Comparison(
        "float16 1x12x1024x64",
        Variant(1, 12, 12, 1024, 1024, 64, dtype="float16"),
        _square(1, 12, 1024, 64),
        "time relative to float32",
        is_quick=True,
    ),
    Comparison(
        "float16 decode 1x32/32x16384",
        Variant(1, 32, 32, 1, 16384, 128, dtype="float16"),
        Attention(1, 32, 32, 1, 16384, 128),
        "speed relative to float32",
        is_speed=True,
    ),
    Comparison(
        "group 8 decode 1x64/8x16384",
        Attention(1, 64, 8, 1, 16384, 128),
        Attention(1, 8, 8, 1, 16384, 128),
        "time relative to one query head for each key head",
    ),
    Comparison(
        "int8 cache decode 1x32/32x16384",
        CachedAttention(1, 32, 32, 1, 16384, 128, storage="int8"),
        CachedAttention(1, 32, 32, 1, 16384, 128),
        "speed relative to a float32 cache",
        is_speed=True,
    ),
    Comparison(
        "float8 cache decode 1x32/32x16384",
        CachedAttention(1, 32, 32, 1, 16384, 128, storage="float8_e4m3fn"),
        CachedAttention(1, 32, 32, 1, 16384, 128),
        "speed relative to a float32 cache",
        is_speed=True,
    ),
    Comparison(
        "4-bit cache decode 1x32/32x16384",
        CachedAttention(1, 32, 32, 1, 16384, 128, storage="q4_1"),
        CachedAttention(1, 32, 32, 1, 16384, 128),
        "speed relative to a float32 cache",
        is_speed=True,
    ),
    Comparison(
        "pages decode 8x32/8x4096x128",
        CachedAttention(8, 32, 8, 1, 4096, 128, page_size=192),
        Attention(8, 32, 8, 1, 4096, 128),
        "time of attending to a cache in pages relative to arrays",
    ),
    Comparison(
        "append beside 1x32/8x4096x128",
        Append(8, 4096, 128),
        Attention(1, 32, 8, 1, 4096, 128),
        "time of appending a token relative to attending",
        is_quick=True,
    ),
    Comparison(
        "evict beside 1x32/8x4096x128",
        Append(8, 4096, 128, evicts=True),
        Attention(1, 32, 8, 1, 4096, 128),
        "time of appending a token and evicting one, relative to attending",
        is_quick=True,
    ),
    Comparison(
        "prefill a cache 1x32/8x512x128",
        CachedAttention(1, 32, 8, 512, 512, 128, is_causal=True),
        _square(1, 32, 512, 128, kv_heads=8, is_causal=True),
        "time of appending and attending relative to the plain call",
        is_quick=True,
    ),
    Comparison(
        "prefill pages 1x32/8x512x128",
        CachedAttention(1, 32, 8, 512, 512, 128, is_causal=True, page_size=64),
        _square(1, 32, 512, 128, kv_heads=8, is_causal=True),
        "time of appending and attending relative to the plain call",
    ),
    Comparison(
        "mapped file 4 GB 1x8/8x524288",
        CachedAttention(1, 8, 8, 1, 4096, 128, repeats=128, is_mapped=True),
        CachedAttention(1, 8, 8, 1, 4096, 128, repeats=128),
        "time relative to a cache of that size in memory",
        only_by_name=True,
    ),
    Comparison(
        "int8 arithmetic 1x12x1024x64",
        Variant(1, 12, 12, 1024, 1024, 64, precision="int8"),
        _square(1, 12, 1024, 64),
        "speed relative to float32",
        is_speed=True,
    ),
    Comparison(
        "int8 arithmetic 1x8x4096x128",
        Variant(1, 8, 8, 4096, 4096, 128, precision="int8"),
        _square(1, 8, 4096, 128),
        "speed relative to float32",
        is_speed=True,
    ),
    Comparison(
        "bfloat16 arithmetic 1x12x1024x64",
        Variant(1, 12, 12, 1024, 1024, 64, precision="bfloat16"),
        _square(1, 12, 1024, 64),
        "speed relative to float32",
        is_speed=True,
    ),
    Comparison(
        "bfloat16 arithmetic 1x8x4096x128",
        Variant(1, 8, 8, 4096, 4096, 128, precision="bfloat16"),
        _square(1, 8, 4096, 128),
        "speed relative to float32",
        is_speed=True,
    ),
    Comparison(
        "mask of blocks 1x8x4096x64",
        Variant(1, 8, 8, 4096, 4096, 64, mask_block=128),
        _square(1, 8, 4096, 64),
        "time relative to the visible half without a mask",
        for_equal_work=True,
    ),
    *(
        Comparison(
            f"4 of 64 blocks 1x2x8192x{head_dim}",
            Variant(1, 2, 2, 8192, 8192, head_dim, blocks_per_row=4),
            _square(1, 2, 8192, head_dim),
            "time relative to this share of the call without a mask",
            for_equal_work=True,
        )
        for head_dim in (64, 128)
    ),
    Comparison(
        "documents of 2000 1x1x262000x64",
        Variant(1, 1, 1, 262000, 262000, 64, document=2000),
        _square(131, 1, 2000, 64),
        "time relative to a batch of the documents",
        for_equal_work=True,
    ),
    Comparison(
        "window 256 1x4x65536x64",
        Variant(1, 4, 4, 65536, 65536, 64, window=(255, 0)),
        _square(1, 4, 2048, 64),
        "time relative to as many operations without a window",
        for_equal_work=True,
    ),
    Comparison(
        "2 threads 1x12x2048x64",
        _square(1, 12, 2048, 64),
        _square(1, 12, 2048, 64),
        "speed relative to one thread",
        is_speed=True,
        threads=(2, 1),
        is_quick=True,
    ),
    Comparison(
        "2 threads backward 1x1x2048x64",
        Backward(1, 1, 1, 2048, 2048, 64),
        Backward(1, 1, 1, 2048, 2048, 64),
        "speed of one head relative to one thread",
        is_speed=True,
        threads=(2, 1),
    ),
    Comparison(  # six products; the forward call has two
        "jvp 1x12x1024x64",
        Tangent(1, 12, 12, 1024, 1024, 64),
        _square(1, 12, 1024, 64),
        "time relative to the forward call",
    ),
)


def select(names: Sequence[str], *, quick: bool) -> tuple[list[Case], list[Comparison]]:
    """Select cases and comparisons by parts of their names; without names, all or the quick ones.

    Raises ValueError if a name selects nothing.
    """
    rows: tuple[Case | Comparison, ...] = (*CASES, *COMPARISONS)
    if names:
        wanted = {match for name in names for match in _matches(name, [row.name for row in rows])}
    elif quick:
        wanted = {row.name for row in rows if row.is_quick}
    else:
        wanted = {row.name for row in rows} - {row.name for row in COMPARISONS if row.only_by_name}
    return (
        [case for case in CASES if case.name in wanted],
        [comparison for comparison in COMPARISONS if comparison.name in wanted],
    )


def _matches(name: str, names: Sequence[str]) -> list[str]:
    if name in names:
        return [name]
    found = [other for other in names if name.casefold() in other.casefold()]
    if not found or not name:
        raise ValueError(f"no case has {name!r} in its name; --list shows the names")
    return found
