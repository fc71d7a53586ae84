"""Frequencies that are powers of a base, and argument checks that encodings share."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import as_array, is_floating
from regard._arguments.numbers import count, finite_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

DEFAULT_BASE = 10000.0


def geometric(dim: int, base: SupportsFloat) -> NDArray[np.float64]:
    """Return ``base ** (-2 m / dim)`` for each pair ``m`` of `dim` columns."""
    exponent = 2 * np.arange((dim + 1) // 2) / dim
    frequencies: NDArray[np.float64] = 1 / np.power(finite_number("base", base), exponent)
    return frequencies


def even(rotary_dim: SupportsIndex, source: str = "") -> int:
    """Return an even number of columns, or raise TypeError or ValueError.

    `source` names the origin of the number if it was not passed as `rotary_dim`.
    """
    dim = count("rotary_dim", rotary_dim, minimum=2)
    if dim % 2:
        raise ValueError(f"rotary_dim must be even, got {dim}{source}")
    return dim


def numbers_of_pairs(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Return one finite real number for each pair of columns, or raise TypeError or ValueError."""
    array = as_array(name, value)
    if array.dtype.kind not in "iu" and not is_floating(array.dtype):
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"{name} must be 1-D with one number for each pair of columns, got shape {array.shape}"
        )
    numbers: NDArray[np.float64] = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return numbers
