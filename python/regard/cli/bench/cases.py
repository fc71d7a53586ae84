"""The table of cases: what is timed, beside which limit of the machine, and what is to be reached.

Everything that times regard takes its cases from here: the command, and asv in ``benchmarks/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..cached_problems import Append, CachedAttention
from ..problems import Attention, Matmul, Problem, Softmax

Yardstick = Literal["peak", "bandwidth"]


@dataclass(frozen=True)
class Group:
    """Cases that are counted alike: in which unit, and beside which limit of the machine."""

    title: str
    unit: Literal["us", "GFLOP/s", "GB/s"]
    yardstick: Yardstick | None = None


CALL = Group("a small call", "us")
FORWARD = Group("attention", "GFLOP/s", "peak")
DECODE = Group("decode", "GB/s", "bandwidth")
PRODUCT = Group("matmul", "GFLOP/s", "peak")
SOFTMAX = Group("softmax", "GB/s")


@dataclass(frozen=True)
class Goals:
    """What regard is to reach in a case; None where nothing is asked.

    `share` is that of the yardstick, for x86_v4 and for x86_v3; `peers` is the speed against the
    best peer, `peer` that against a named one.
    """

    share: tuple[float, float] | None = None
    peers: float | None = None
    peer: tuple[str, float] | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Case:
    """A problem that every engine gets."""

    name: str
    group: Group
    problem: Problem
    about: str = ""
    goals: Goals = Goals()
    is_quick: bool = False


@dataclass(frozen=True)
class Comparison:
    """A problem that regard gets beside another one.

    The result is time over time, or its inverse where `is_speed`; `for_equal_work` divides by the
    ratio of their operations. `threads` are those of both where they are not the run's. One that
    `needs_name` takes memory and disk that a run should not take unasked.
    """

    name: str
    problem: Problem
    beside: Problem
    about: str
    limit: float
    is_speed: bool = False
    for_equal_work: bool = False
    threads: tuple[int, int] | None = None
    is_quick: bool = False
    needs_name: bool = False


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


def _forward(
    problem: Attention, about: str = "", *, share: tuple[float, float] | None = None, quick: bool
) -> Case:
    heads = f"{problem.heads}"
    if problem.kv_heads != problem.heads:
        heads += f"/{problem.kv_heads}"
    name = f"{problem.batch}x{heads}x{problem.q_len}x{problem.head_dim}"
    if problem.is_causal:
        name += " causal"
    return Case(name, FORWARD, problem, about, Goals(share=share, peers=1.2), quick)


def _decode(
    batch: int, heads: int, kv_heads: int, kv_len: int, *, peers: float = 1.2, quick: bool = False
) -> Case:
    problem = Attention(batch, heads, kv_heads, 1, kv_len, 128)
    name = f"decode {batch}x{heads}/{kv_heads}x{kv_len}x128"
    about = f"{problem.bytes / 1e6:.0f} MB of keys and values"
    return Case(name, DECODE, problem, about, Goals(share=(0.88, 0.88), peers=peers), quick)


def _matmul(size: int, *, quick: bool = False) -> Case:
    name = f"matmul {size}"
    goals = Goals(peer=("NumPy", 1.1))
    return Case(name, PRODUCT, Matmul(size, size, size), "square matrices", goals, quick)


# Of the fma peak, from 1024 keys on, for a head_dim of 64 and of 128.
_SHARE_64 = (0.80, 0.78)
_SHARE_128 = (0.84, 0.78)

CASES: Sequence[Case] = (
    Case(
        "notebook 6x2",
        CALL,
        Attention(1, 1, 1, 6, 6, 2),
        "6 tokens, what a call costs",
        Goals(seconds=4e-6, peers=1.2),
        True,
    ),
    Case(
        "early 1x32/8x128x128",
        CALL,
        Attention(1, 32, 8, 1, 128, 128, is_resident=True),
        "early decode, keys and values in the processor's cache",
        Goals(seconds=20e-6, peers=1.2),
        True,
    ),
    _forward(_square(1, 8, 64, 64), quick=True),
    _forward(_square(8, 12, 128, 64), "a BERT batch", quick=True),
    _forward(_square(1, 12, 512, 64), quick=True),
    _forward(_square(1, 12, 1024, 64, is_causal=True), "GPT-2", share=_SHARE_64, quick=True),
    _forward(
        _square(1, 32, 2048, 128, kv_heads=8, is_causal=True),
        "Llama, 4 query heads a key head",
        share=_SHARE_128,
        quick=False,
    ),
    _forward(_square(1, 8, 8192, 128, is_causal=True), share=_SHARE_128, quick=False),
    _forward(_square(1, 8, 8192, 64), share=_SHARE_64, quick=False),
    _forward(_square(1, 8, 4096, 128), share=_SHARE_128, quick=False),
    _forward(_square(8, 16, 197, 64), "a ViT batch, no multiple of anything", quick=True),
    _forward(_square(2, 8, 4096, 40), "diffusion, a head_dim of 40", quick=False),
    _decode(1, 32, 8, 4096, peers=3.0, quick=True),
    _decode(8, 32, 8, 4096, peers=3.0),
    _decode(1, 32, 32, 16384),
    _matmul(512, quick=True),
    _matmul(1024),
    _matmul(2048),
    Case(
        "matmul 96x128x64x128",
        PRODUCT,
        Matmul(128, 64, 128, batch=96),
        "96 products of 128x64 and 64x128",
        Goals(peer=("NumPy", 2.5)),
        True,
    ),
    Case(
        "softmax 4096x1024",
        SOFTMAX,
        Softmax(4096, 1024),
        "the matrix read once and written once",
        Goals(peer=("PyTorch", 1.2)),
        True,
    ),
)

COMPARISONS: Sequence[Comparison] = (
    Comparison(
        "causal 1x12x1024x64",
        _square(1, 12, 1024, 64, is_causal=True),
        _square(1, 12, 1024, 64),
        "time, of the whole square's",
        0.58,
        is_quick=True,
    ),
    Comparison(
        "causal 1x8x4096x64",
        _square(1, 8, 4096, 64, is_causal=True),
        _square(1, 8, 4096, 64),
        "time, of the whole square's",
        0.53,
    ),
    Comparison(  # rows of one head lie 4 KB apart: they share few lines of the first cache
        "strided 1x16x1024x64",
        Attention(1, 16, 16, 1024, 1024, 64, is_strided=True),
        _square(1, 16, 1024, 64),
        "time of (B, L, H, D) views, of contiguous arrays'",
        1.05,
        is_quick=True,
    ),
    Comparison(
        "float16 1x12x1024x64",
        Attention(1, 12, 12, 1024, 1024, 64, dtype="float16"),
        _square(1, 12, 1024, 64),
        "time, of float32's",
        1.1,
        is_quick=True,
    ),
    Comparison(
        "float16 decode 1x32/32x16384",
        Attention(1, 32, 32, 1, 16384, 128, dtype="float16"),
        Attention(1, 32, 32, 1, 16384, 128),
        "speed, of float32's",
        1.8,
        is_speed=True,
    ),
    Comparison(
        "group 8 decode 1x64/8x16384",
        Attention(1, 64, 8, 1, 16384, 128),
        Attention(1, 8, 8, 1, 16384, 128),
        "time, of one query head a key head",
        1.15,
    ),
    Comparison(
        "int8 cache decode 1x32/32x16384",
        CachedAttention(1, 32, 32, 1, 16384, 128, storage="int8"),
        CachedAttention(1, 32, 32, 1, 16384, 128),
        "speed, of a float32 cache's",
        3.0,
        is_speed=True,
    ),
    Comparison(
        "append beside 1x32/8x4096x128",
        Append(8, 4096, 128),
        Attention(1, 32, 8, 1, 4096, 128),
        "time of appending a token, of attending",
        0.02,
        is_quick=True,
    ),
    Comparison(
        "evict beside 1x32/8x4096x128",
        Append(8, 4096, 128, evicts=True),
        Attention(1, 32, 8, 1, 4096, 128),
        "time of a token that takes the oldest one's place, of attending",
        0.02,
        is_quick=True,
    ),
    Comparison(
        "prefill a cache 1x32/8x512x128",
        CachedAttention(1, 32, 8, 512, 512, 128, is_causal=True),
        _square(1, 32, 512, 128, kv_heads=8, is_causal=True),
        "time of appending and attending, of the plain call",
        1.05,
        is_quick=True,
    ),
    Comparison(
        "prefill pages 1x32/8x512x128",
        CachedAttention(1, 32, 8, 512, 512, 128, is_causal=True, page_size=64),
        _square(1, 32, 512, 128, kv_heads=8, is_causal=True),
        "time of appending and attending, of the plain call",
        1.05,
    ),
    Comparison(
        "mapped file 4 GB 1x8/8x524288",
        CachedAttention(1, 8, 8, 1, 4096, 128, repeats=128, is_mapped=True),
        CachedAttention(1, 8, 8, 1, 4096, 128, repeats=128),
        "time, of a cache as large in memory",
        1.1,
        needs_name=True,
    ),
    Comparison(
        "int8 arithmetic 1x12x1024x64",
        Attention(1, 12, 12, 1024, 1024, 64, precision="int8"),
        _square(1, 12, 1024, 64),
        "speed, of float32's",
        1.35,
        is_speed=True,
    ),
    Comparison(
        "int8 arithmetic 1x8x4096x128",
        Attention(1, 8, 8, 4096, 4096, 128, precision="int8"),
        _square(1, 8, 4096, 128),
        "speed, of float32's",
        1.35,
        is_speed=True,
    ),
    Comparison(
        "mask of blocks 1x8x4096x64",
        Attention(1, 8, 8, 4096, 4096, 64, mask_block=128),
        _square(1, 8, 4096, 64),
        "time, of what the visible half takes unmasked",
        1.3,
        for_equal_work=True,
    ),
    Comparison(
        "window 256 1x4x65536x64",
        Attention(1, 4, 4, 65536, 65536, 64, window=(255, 0)),
        _square(1, 4, 2048, 64),
        "time, of as many operations without a window",
        1.5,
        for_equal_work=True,
    ),
    Comparison(
        "2 threads 1x12x2048x64",
        _square(1, 12, 2048, 64),
        _square(1, 12, 2048, 64),
        "speed, of one thread's",
        1.9,
        is_speed=True,
        threads=(2, 1),
        is_quick=True,
    ),
)


def select(names: Sequence[str], *, quick: bool) -> tuple[list[Case], list[Comparison]]:
    """Pick the cases and comparisons that are asked for.

    Parameters
    ----------
    names : sequence of str
        Whole names, or parts that select every name that has them.
    quick : bool
        Whether only the quick ones are wanted where no name is given, and not all.

    Returns
    -------
    cases : list of Case
        In the order of the table.
    comparisons : list of Comparison
        Likewise.

    Raises
    ------
    ValueError
        If a name selects nothing.
    """
    rows: tuple[Case | Comparison, ...] = (*CASES, *COMPARISONS)
    if names:
        every = [row.name for row in rows]
        wanted = {match for name in names for match in _matches(name, every)}
    else:
        wanted = {row.name for row in rows if row.is_quick or not (quick or _needs_name(row))}
    return (
        [case for case in CASES if case.name in wanted],
        [comparison for comparison in COMPARISONS if comparison.name in wanted],
    )


def _needs_name(row: Case | Comparison) -> bool:
    return isinstance(row, Comparison) and row.needs_name


def _matches(name: str, every: Sequence[str]) -> list[str]:
    if name in every:
        return [name]
    found = [other for other in every if name.casefold() in other.casefold()]
    if not found or not name:
        raise ValueError(f"no case has {name!r} in its name; --list shows them all")
    return found
