"""Problems to time: their arrays, the result in float64, and the work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from regard._bench.engines import Array, Call, Engine

Inputs = tuple[Any, ...]


class Problem(Protocol):
    """Something to compute: a dataclass with its sizes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def flops(self) -> int:
        """The number of floating-point operations, excluding hidden keys."""

    @property
    def bytes(self) -> int:
        """The number of bytes that must be read, and written if the problem changes all of them."""

    def make_inputs(self) -> Inputs:
        """Return the arrays. They are the same in every call."""

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Return the index of some rows of the result, and these rows in float64."""

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the call of an engine that computes it."""


@dataclass(frozen=True)
class Attention:
    """Attention of (batch, heads, q_len, head_dim) over (batch, kv_heads, kv_len, head_dim).

    If `value_dim` is None, it equals `head_dim`. `window` counts the visible neighbors on both
    sides. With `mask_block`, a bool mask of square blocks with that side hides a random half of the
    blocks in each row of blocks. If `is_strided`, arrays are views of (batch, length, heads, dim)
    storage. `precision` is the option of that name. If `is_resident`, keys and values of a single
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
    window: tuple[int, int] | None = None
    mask_block: int | None = None
    dtype: str = "float32"
    is_strided: bool = False
    precision: str | None = None
    is_resident: bool = False

    @cached_property
    def visible(self) -> int:
        """The number of visible pairs of query and key per head; half of a causal square."""
        pairs = self.q_len * self.kv_len
        if self.is_causal or self.mask_block:
            return pairs // 2
        if self.window is None:
            return pairs
        position = np.arange(self.q_len)
        first = np.maximum(position - self.window[0], 0)
        last = np.minimum(position + self.window[1], self.kv_len - 1)
        return int(np.maximum(last - first + 1, 0).sum())

    @property
    def flops(self) -> int:
        """A multiplication and an addition per visible pair and column of keys and values."""
        return 2 * self.batch * self.heads * self.visible * self._columns

    @property
    def bytes(self) -> int:
        """The size of keys and values."""
        rows = self.batch * self.kv_heads * self.kv_len
        return rows * self._columns * np.dtype(self.dtype).itemsize

    @property
    def _columns(self) -> int:
        return self.head_dim + (self.value_dim or self.head_dim)

    @property
    def streams_keys(self) -> bool:
        """Whether a single query reads keys from memory."""
        return self.q_len == 1 and not self.is_resident

    def make_inputs(self) -> Inputs:
        """Return query, key, value, and the mask or None."""
        rng = np.random.default_rng(0)

        def draw(heads: int, length: int, columns: int) -> Array:
            shape = (self.batch, heads, length, columns)
            if self.is_strided:
                shape = (self.batch, length, heads, columns)
            array = rng.standard_normal(shape, dtype=np.float32).astype(self.dtype, copy=False)
            return array.swapaxes(1, 2) if self.is_strided else array

        query = draw(self.heads, self.q_len, self.head_dim)
        key = draw(self.kv_heads, self.kv_len, self.head_dim)
        value = draw(self.kv_heads, self.kv_len, self.value_dim or self.head_dim)
        return query, key, value, self._make_mask(rng)

    def _make_mask(self, rng: np.random.Generator) -> Array | None:
        if self.mask_block is None:
            return None
        side = self.mask_block
        down, across = self.q_len // side, self.kv_len // side
        blocks = rng.permuted(np.tile(np.arange(across) % 2 == 0, (down, 1)), axis=1)
        mask: Array = blocks.repeat(side, axis=0).repeat(side, axis=1)
        return mask

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute the outputs of the first, the last and two middle queries of each head."""
        query, key, value, mask = inputs
        rows = sorted({0, self.q_len // 3, self.q_len // 2, self.q_len - 1})
        visible = self._visible_from(rows, mask)
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

    def _visible_from(self, rows: list[int], mask: Array | None) -> Array:
        query, key = np.array(rows)[:, None], np.arange(self.kv_len)
        visible = np.ones((len(rows), self.kv_len), dtype=bool)
        if self.is_causal:
            visible &= key <= query
        if self.window is not None:
            visible &= (key >= query - self.window[0]) & (key <= query + self.window[1])
        if mask is not None:
            visible &= mask[rows]
        return visible

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call. Set options that only regard supports are passed."""
        query, key, value, mask = inputs
        given = {"mask": mask, "window": self.window, "precision": self.precision}
        options: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        return engine.attention(query, key, value, is_causal=self.is_causal, **options)
