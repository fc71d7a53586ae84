"""Check arguments that are one number, or one number for each batch entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regard._arguments.numbers import integers, offsets
from regard.masks._rows import check_axes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Integers = NDArray[np.int64]


def lengths(name: str, value: ArrayLike, kv_len: int) -> Integers:
    """Return numbers of keys, each in ``0 .. kv_len``."""
    numbers = integers(name, value, any_size=True)
    check_axes(name, numbers.shape)
    outside = numbers[(numbers < 0) | (numbers > kv_len)]
    if outside.size:
        raise ValueError(f"{name} must be in 0 .. kv_len = {kv_len}, got {outside[0]}")
    return _with_heads_axis(numbers.astype(np.int64))


def diagonals(query_offset: ArrayLike, shift: int, q_len: int, kv_len: int) -> Integers:
    """Return ``query_offset + shift``, the bound of the visible keys for the first query.

    A bound outside ``[-q_len, kv_len]`` is clipped, because the nearest end hides or shows the same
    keys. The sum is a Python integer, and ``i + diagonal`` stays inside int64.
    """
    numbers = offsets(query_offset, kv_len - q_len, any_size=True)
    check_axes("query_offset", numbers.shape)
    clipped = [max(-q_len, min(int(number) + shift, kv_len)) for number in numbers.flat]
    return _with_heads_axis(np.array(clipped, np.int64).reshape(numbers.shape))


def _with_heads_axis(numbers: Integers) -> Integers:
    return numbers[..., None, None, None] if numbers.ndim else numbers
