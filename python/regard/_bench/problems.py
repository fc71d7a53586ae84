"""Problems to time: their arrays, the result in float64, and the work; and cases, by shapes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from regard._bench.engines import Array, Call, Engine
from regard._bench.machine import available_memory

Inputs = tuple[Any, ...]
Limit = Literal["fma peak", "read bandwidth"]


@dataclass(frozen=True)
class Attention:
    """Attention of (batch, heads, q_len, head_dim) over (batch, kv_heads, kv_len, head_dim).

    Other problems have the same methods: `make_inputs`, which returns the same arrays in every
    call, `sample`, which returns the index of some rows of the result and these rows in float64,
    and `on`. `flops` counts operations without hidden keys, and `bytes` what must be read, and
    written if the problem changes all of it.

    If `value_dim` is None, it equals `head_dim`. If `is_resident`, keys and values of a single
    query are in the processor's cache; otherwise they come from memory.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int | None = None
    is_causal: bool = False
    is_resident: bool = False

    @property
    def name(self) -> str:
        """Batch, heads, length and dimension, as in ``1x32/8x2048x128 causal``."""
        pairs = (
            (self.batch, self.batch),
            (self.heads, self.kv_heads),
            (self.q_len, self.kv_len),
            (self.head_dim, self.value_dim or self.head_dim),
        )
        sizes = (f"{one}" if one == other else f"{one}/{other}" for one, other in pairs)
        return "x".join(sizes) + (" causal" if self.is_causal else "")

    @cached_property
    def visible(self) -> int:
        """The number of visible pairs of query and key per head; half of a causal square."""
        return self.q_len * self.kv_len // (2 if self.is_causal else 1)

    @property
    def flops(self) -> int:
        """A multiplication and an addition per visible pair and column of keys and values."""
        return 2 * self.batch * self.heads * self.visible * self.columns

    @property
    def bytes(self) -> int:
        """The size of keys and values."""
        return 4 * self.batch * self.kv_heads * self.kv_len * self.columns

    @property
    def columns(self) -> int:
        """The sum of `head_dim` and `value_dim`."""
        return self.head_dim + (self.value_dim or self.head_dim)

    @property
    def streams_keys(self) -> bool:
        """Whether a single query reads keys from memory."""
        return self.q_len == 1 and not self.is_resident

    def make_inputs(self) -> Inputs:
        """Return query, key and value."""
        draw, batch = np.random.default_rng(0).standard_normal, self.batch
        return (
            draw((batch, self.heads, self.q_len, self.head_dim), np.float32),
            draw((batch, self.kv_heads, self.kv_len, self.head_dim), np.float32),
            draw((batch, self.kv_heads, self.kv_len, self.value_dim or self.head_dim), np.float32),
        )

    def seen(self, rows: list[int], inputs: Inputs) -> Array:
        """Return which keys some queries see, of shape (len(rows), kv_len)."""
        del inputs
        last = np.array(rows) if self.is_causal else np.full(len(rows), self.kv_len)
        visible: Array = np.arange(self.kv_len) <= last[:, None]
        return visible

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute the outputs of the first, the last and two middle queries of each head."""
        query, key, value = inputs[:3]
        rows = sorted({0, self.q_len // 3, self.q_len // 2, self.q_len - 1})
        visible = self.seen(rows, inputs)
        group = self.heads // self.kv_heads
        expected = np.empty((self.batch, self.heads, len(rows), value.shape[-1]))
        for entry, head in np.ndindex(self.batch, self.heads):
            keys, values = (
                array[entry, head // group].astype(np.float64) for array in (key, value)
            )
            scores = query[entry, head, rows].astype(np.float64) @ keys.T
            scores = np.where(visible, scores / math.sqrt(self.head_dim), -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            expected[entry, head] = weights @ values / weights.sum(axis=1, keepdims=True)
        return np.s_[:, :, rows], expected

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.attention(*inputs, is_causal=self.is_causal)


@dataclass(frozen=True)
class Group:
    """Cases that share a unit and a limit of the machine."""

    title: str
    unit: Literal["us", "GFLOP/s", "GB/s"]
    limit: Limit | None = None


CALL = Group("a small call", "us")
FORWARD = Group("attention", "GFLOP/s", "fma peak")
DECODE = Group("decode", "GB/s", "read bandwidth")


@dataclass(frozen=True)
class Case:
    """A problem that all engines compute: `Attention`, or a dataclass with its methods."""

    name: str
    group: Group
    problem: Any
    about: str = ""
    is_quick: bool = False


GRAMMAR = "batch,heads[/kv_heads],length[/kv_len],head_dim[/value_dim]"
MAX_SIZE = 1 << 31
# With less work, the overhead of a call dominates. With fewer bytes of keys and values, a decode
# step finds them in the cache. Both are reported in us instead of a rate.
_SMALL_FLOPS = 1_000_000
_SMALL_BYTES = 4 << 20


def parse_shape(text: str, *, is_causal: bool = False) -> Case:
    """Return the case of a shape such as ``"1,8,512,64"`` or ``"1,32/8,1/4096,128"``.

    Its rate is in us if it is small, in bytes of keys and values per second if a single query reads
    them from memory, and in floating-point operations per second otherwise.

    Raises
    ------
    ValueError
        If the text is not a shape, a causal shape is not square, or the arrays do not fit in
        memory.
    """
    batch, heads, lengths, dims = _sizes(text)
    if is_causal and lengths[0] != lengths[1]:
        raise ValueError(f"must have as many queries as keys to be causal, got {text!r}")
    problem = Attention(batch[0], *heads, *lengths, *dims, is_causal)
    if problem.q_len == 1 and problem.bytes < _SMALL_BYTES:
        problem = replace(problem, is_resident=True)
    is_small = problem.is_resident or problem.flops < _SMALL_FLOPS
    group = DECODE if problem.streams_keys else CALL if is_small else FORWARD
    return Case(problem.name, group, _fitting(problem))


def _fitting(problem: Attention) -> Attention:
    """Refuse a problem whose arrays, and a copy in float64 to check them, do not fit in memory."""
    rows = problem.batch * (problem.heads * problem.q_len + problem.kv_heads * problem.kv_len)
    needed, free = 12 * rows * problem.columns, available_memory()
    if needed > free:
        raise ValueError(
            f"{problem.name} needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )
    return problem


def _sizes(text: str) -> list[tuple[int, int]]:
    """Parse one or two sizes between commas, with as many commas as the grammar has."""
    fields = text.split(",")
    if len(fields) != GRAMMAR.count(",") + 1:
        raise ValueError(f"must be {GRAMMAR}, such as 1,32/8,1/4096,128, got {text!r}")
    pairs = [field.partition("/") for field in fields]
    sizes = [(_size(one, text), _size(two if slash else one, text)) for one, slash, two in pairs]
    if sizes[0][0] != sizes[0][1]:
        raise ValueError(f"batch must be one size, got {text!r}")
    heads, kv_heads = sizes[1]
    if heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    return sizes


def _size(field: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", field) or not 1 <= int(field) <= MAX_SIZE:
        raise ValueError(f"sizes must be whole numbers from 1 to {MAX_SIZE}, got {text!r}")
    return int(field)
