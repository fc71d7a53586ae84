"""Products and the stages of attention, as problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.table.engines import TableEngine
from regard._bench.engines import Array, Call
from regard._bench.problems import Inputs


@dataclass(frozen=True)
class Matmul:
    """Products of (batch, rows, depth) and (batch, depth, columns). Batch 0 means no batch axis."""

    rows: int
    depth: int
    columns: int
    batch: int = 0

    @property
    def flops(self) -> int:
        """A multiplication and an addition per element and step."""
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

    def on(self, engine: TableEngine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.matmul(*inputs)


@dataclass(frozen=True)
class Stage:
    """An operation on a matrix of scores. Every element is read once and written once."""

    rows: int
    columns: int

    @property
    def flops(self) -> int:
        """Zero, since memory determines the time."""
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

    def on(self, engine: TableEngine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.softmax(inputs[0], self.axis)


@dataclass(frozen=True)
class Scale(Stage):
    """A product with a number."""

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute two rows."""
        index = np.s_[[0, self.rows - 1]]
        return index, inputs[0][index].astype(np.float64) * 0.125

    def on(self, engine: TableEngine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.scale(inputs[0], 0.125)


@dataclass(frozen=True)
class ApplyMask(Stage):
    """A bool mask that hides a random half of the scores."""

    @property
    def bytes(self) -> int:
        """The scores read and written, and the mask read."""
        return super().bytes + self.rows * self.columns

    def make_inputs(self) -> Inputs:
        """Make the scores and the mask."""
        mask = np.random.default_rng(1).random((self.rows, self.columns)) < 0.5
        return (*super().make_inputs(), mask)

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Return the visible elements of two rows, which are finite."""
        scores, mask = inputs
        index = np.nonzero(mask[:2])
        return index, scores[index].astype(np.float64)

    def on(self, engine: TableEngine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        return engine.apply_mask(*inputs)
