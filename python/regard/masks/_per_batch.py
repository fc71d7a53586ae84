"""Arguments that are one number, or one for each batch entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regard._arguments import integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Integers = NDArray[np.int64]


def lengths(name: str, value: ArrayLike, kv_len: int) -> Integers:
    """Return numbers of keys, each in ``0 .. kv_len``."""
    numbers = integers(name, value, any_size=True)
    outside = numbers[(numbers < 0) | (numbers > kv_len)]
    if outside.size:
        raise ValueError(f"{name} must be in 0 .. kv_len = {kv_len}, got {outside[0]}")
    return _beside_heads(numbers.astype(np.int64))


def diagonals(query_offset: ArrayLike, shift: int, q_len: int, kv_len: int) -> Integers:
    """Return ``query_offset + shift``: where a bound of the visible keys meets the first query.

    Beyond ``[-q_len, kv_len]`` it hides or shows everything, as the nearest end does; clipping
    keeps ``i + diagonal`` inside int64, and Python's integers hold what comes before.
    """
    offsets = integers("query_offset", query_offset, any_size=True)
    clipped = [max(-q_len, min(int(offset) + shift, kv_len)) for offset in offsets.flat]
    return _beside_heads(np.array(clipped, np.int64).reshape(offsets.shape))


def _beside_heads(numbers: Integers) -> Integers:
    return numbers[..., None, None, None] if numbers.ndim else numbers
