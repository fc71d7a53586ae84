"""What the engines are timed on: arrays, what is computed from them, and how much work it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from regard._bench.engines import Array, Call, Engine

Inputs = tuple[Any, ...]


class Problem(Protocol):
    """Something to compute: a dataclass of the numbers that say how large it is."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def flops(self) -> int:
        """The floating-point operations that it needs; what is hidden is not counted."""

    @property
    def bytes(self) -> int:
        """The bytes that it must read, and write where it changes all it reads, once."""

    def make_inputs(self) -> Inputs:
        """Make the arrays, the same ones at every call."""

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Return the index of some rows of the result, and these rows computed in float64."""

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the call with which an engine computes it."""


@dataclass(frozen=True)
class Attention:
    """Attention of (batch, heads, q_len, head_dim) over (batch, kv_heads, kv_len, head_dim).

    `value_dim` is `head_dim` where it is None. `window` counts the visible neighbors on either
    side. With `mask_block`, a bool mask hides a random half of the blocks of that side from every
    row of blocks. `is_strided` means views of (batch, length, heads, dim) storage. `precision` is
    the option of that name. The keys of a decode come from memory, unless it `is_resident` in the
    processor's cache.
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
        """The pairs of query and key that one head sees; a causal square counts as its half."""
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
        """A multiplication and an addition for each visible pair and each column of K and V."""
        return 2 * self.batch * self.heads * self.visible * self._columns

    @property
    def bytes(self) -> int:
        """Keys and values once."""
        rows = self.batch * self.kv_heads * self.kv_len
        return rows * self._columns * np.dtype(self.dtype).itemsize

    @property
    def _columns(self) -> int:
        return self.head_dim + (self.value_dim or self.head_dim)

    @property
    def streams_keys(self) -> bool:
        """Whether one query reads keys that must come from memory."""
        return self.q_len == 1 and not self.is_resident

    def make_inputs(self) -> Inputs:
        """Make query, key, value, and the mask or None."""
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
        """Compute the first, the last and two middle queries of every head in float64."""
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
        """Return the engine's call; options that only regard has are passed where they are set."""
        query, key, value, mask = inputs
        given = {"mask": mask, "window": self.window, "precision": self.precision}
        options: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        return engine.attention(query, key, value, is_causal=self.is_causal, **options)


@dataclass(frozen=True)
class Matmul:
    """Products of (batch, rows, depth) and (batch, depth, columns); no batch axis where it is 0."""

    rows: int
    depth: int
    columns: int
    batch: int = 0

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each element and step."""
        return 2 * max(1, self.batch) * self.rows * self.depth * self.columns

    @property
    def bytes(self) -> int:
        """Both operands and the product once."""
        per_product = self.rows * self.depth + self.depth * self.columns + self.rows * self.columns
        return 4 * max(1, self.batch) * per_product

    def make_inputs(self) -> Inputs:
        """Make both operands."""
        rng = np.random.default_rng(0)
        leading = (self.batch,) if self.batch else ()
        shapes = (*leading, self.rows, self.depth), (*leading, self.depth, self.columns)
        return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute two rows of every product in float64."""
        a, b = inputs
        index = np.s_[..., [0, self.rows - 1], :]
        return index, a[index].astype(np.float64) @ b.astype(np.float64)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.matmul(*inputs)


@dataclass(frozen=True)
class Stage:
    """What is done to a matrix of scores: every element is read once and written once."""

    rows: int
    columns: int

    @property
    def flops(self) -> int:
        """Zero: the time goes to memory."""
        return 0

    @property
    def bytes(self) -> int:
        """The matrix read once and written once."""
        return 2 * 4 * self.rows * self.columns

    def make_inputs(self) -> Inputs:
        """Make the matrix."""
        rng = np.random.default_rng(0)
        return (rng.standard_normal((self.rows, self.columns), dtype=np.float32),)


@dataclass(frozen=True)
class Softmax(Stage):
    """Softmax along an axis of a matrix."""

    axis: int = -1

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute two rows, or columns, in float64."""
        ends = [0, (self.rows, self.columns)[1 - self.axis % 2] - 1]
        index = np.s_[ends] if self.axis % 2 else np.s_[:, ends]
        exponentials = np.exp(inputs[0][index].astype(np.float64))
        return index, exponentials / exponentials.sum(axis=self.axis, keepdims=True)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.softmax(inputs[0], self.axis)


@dataclass(frozen=True)
class Scale(Stage):
    """A product with a number."""

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute two rows."""
        index = np.s_[[0, self.rows - 1]]
        return index, inputs[0][index].astype(np.float64) * 0.125

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.scale(inputs[0], 0.125)


@dataclass(frozen=True)
class ApplyMask(Stage):
    """A bool mask over the scores, in which every other element is hidden, at random places."""

    @property
    def bytes(self) -> int:
        """The scores read and written, and the mask read."""
        return super().bytes + self.rows * self.columns

    def make_inputs(self) -> Inputs:
        """Make the scores and the mask."""
        mask = np.random.default_rng(1).random((self.rows, self.columns)) < 0.5
        return (*super().make_inputs(), mask)

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Choose among two rows' visible elements, which are finite."""
        scores, mask = inputs
        index = np.nonzero(mask[:2])
        return index, scores[index].astype(np.float64)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.apply_mask(*inputs)
