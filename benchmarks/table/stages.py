"""Products and the stages of attention, as problems."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import regard
from regard._bench.engines import Array, Call, Engine, LeftOutError, NumPy, PyTorch, Regard
from regard._bench.engines import OnnxRuntime as Onnx
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

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        match engine:
            case Regard():
                return partial(regard.matmul, *inputs, **engine.options)
            case NumPy():
                return partial(np.matmul, *inputs)
            case PyTorch():
                return partial(engine.torch.matmul, *map(engine.torch.from_numpy, inputs))
            case Onnx():
                return engine.session("MatMul", dict(zip("AB", inputs, strict=True)))
        raise LeftOutError("none: it has no products")


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

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        (x,) = inputs
        match engine:
            case Regard():
                return partial(regard.softmax, x, self.axis, **engine.options)
            case NumPy():
                return partial(self._in_numpy, x)
            case PyTorch():
                return partial(engine.torch.softmax, engine.torch.from_numpy(x), dim=self.axis)
            case Onnx():
                return engine.session(f"Softmax<axis={self.axis}>", {"input": x})
        raise LeftOutError("none: it has no softmax")

    def _in_numpy(self, x: Array) -> Array:
        weights: Array = x - x.max(axis=self.axis, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=self.axis, keepdims=True)
        return weights


@dataclass(frozen=True)
class Scale(Stage):
    """A product with a number."""

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Compute two rows."""
        index = np.s_[[0, self.rows - 1]]
        return index, inputs[0][index].astype(np.float64) * 0.125

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        (scores,) = inputs
        match engine:
            case Regard():
                return partial(regard.scale, scores, 0.125, **engine.options)
            case NumPy():
                return partial(np.multiply, scores, scores.dtype.type(0.125))
            case PyTorch():
                return partial(engine.torch.mul, engine.torch.from_numpy(scores), 0.125)
            case Onnx():
                return engine.session("Mul", {"A": scores, "B": np.full(1, 0.125, scores.dtype)})
        raise LeftOutError("none: it has no products with a number")


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

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the engine's call."""
        scores, mask = inputs
        hidden = scores.dtype.type(-np.inf)
        match engine:
            case Regard():
                return partial(regard.apply_mask, scores, mask, **engine.options)
            case NumPy():
                return partial(np.where, mask, scores, hidden)
            case PyTorch():
                shown, array = map(engine.torch.from_numpy, (mask, scores))
                return partial(engine.torch.where, shown, array, -math.inf)
            case Onnx():
                arrays = {"condition": mask, "X": scores, "Y0": np.full(1, hidden)}
                return engine.session("Where", arrays)
        raise LeftOutError("none: it has no masks")
