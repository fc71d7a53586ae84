"""Reduce blocks of an array to pixels, as `regard.attention_map` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Integers = NDArray[np.int64]

REDUCTIONS = ("max", "sum", "mean")


def edges(length: int, pixels: int, first: int = 0) -> Integers:
    """Return the first index of each block, and the end of the last one."""
    return first + np.arange(pixels + 1, dtype=np.int64) * length // pixels


def reduced(values: Array, of_axis: Integers, axis: int, reduce: str) -> Array:
    """Reduce the blocks between edges along an axis: max, or sum in float64."""
    if reduce == "max":
        return np.asarray(np.maximum.reduceat(values, of_axis[:-1], axis=axis))
    return np.asarray(np.add.reduceat(values, of_axis[:-1], axis=axis, dtype=np.float64))


def pooled(values: Array, rows: Integers, columns: Integers, reduce: str) -> Array:
    """Reduce the blocks between the edges of the last two axes to pixels."""
    pixels = reduced(reduced(values, columns, -1, reduce), rows, -2, reduce)
    return pixels / areas(rows, columns) if reduce == "mean" else pixels


def areas(rows: Integers, columns: Integers) -> Integers:
    """Return the number of entries of each pixel."""
    return np.asarray(np.diff(rows)[:, None] * np.diff(columns))
