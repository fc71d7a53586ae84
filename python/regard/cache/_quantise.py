"""Numbers in 8 bits: a scale for each row, and keys rotated.

A row r of values is stored as integers ``round(r / s)``, half to even, with ``s = max|r| / 127``:
none is off by more than ``s / 2``. Of a key k, ``H k / n`` is stored likewise, and the kernels
multiply it with ``H q``. H is a Hadamard matrix for each group of n dimensions, n the largest power
of two that divides head_dim: ``H H = n``, so that no product of a query and a key changes. Keys of
real models have a few channels far larger than the others, which would make scales coarse, and
which H spreads over all (Ashkboos et al. 2024, "QuaRot"; `docs/numerics.md` has what it does here).
What is stored of a token depends on that token alone.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard.cache._rows import SCALE_TYPE, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# The scale of a row of zeros, and the least of any: smaller ones would not be precise themselves.
_LEAST = np.finfo(SCALE_TYPE).smallest_normal


def quantised(keys: Array, values: Array, counts: Array) -> Rows:
    """Return new tokens as they are stored.

    `counts` says how many of them are real in each entry. What is not may be anything.
    """
    # What is not finite is found below.
    with np.errstate(all="ignore"):
        keys, values = keys.astype(SCALE_TYPE, copy=False), values.astype(SCALE_TYPE, copy=False)
        new = keys.shape[2]
        if int(counts.min()) < new:
            is_real = (np.arange(new) < counts[:, None])[:, None, :, None]
            keys, values = np.where(is_real, keys, 0), np.where(is_real, values, 0)
        turned = _rotated(keys)
        if keys.shape == values.shape:  # one token's time is that of the calls, not of the numbers
            both = _rounded(np.array((turned, values)))
            (key_rows, value_rows), (key_scales, value_scales) = both
        else:
            key_rows, key_scales = _rounded(turned)
            value_rows, value_scales = _rounded(values)
    for name, given, scales in (("key", keys, key_scales), ("value", values, value_scales)):
        if not np.maximum.reduce(scales, axis=None) < np.inf:
            bad = given[~np.isfinite(given)][0]
            raise ValueError(f"{name} must be finite in float32 to be stored as int8, got {bad}")
    return Rows(key_rows, value_rows, key_scales, value_scales)


def _rotated(keys: Array) -> Array:
    """Return ``H k / n`` of each key k."""
    group = keys.shape[-1] & -keys.shape[-1]
    turned = _core.matmul(keys.reshape(-1, group), rotation(group), None, None)
    return turned.reshape(keys.shape)


@cache
def rotation(size: int) -> Array:
    """Return a Hadamard matrix over its size, a power of two (Sylvester's)."""
    signs = np.ones((1, 1), SCALE_TYPE)
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs / SCALE_TYPE.type(size)


def _rounded(rows: Array) -> tuple[Array, Array]:
    """Return rows as integers and their scales."""
    scales = np.maximum.reduce(np.abs(rows), axis=-1, keepdims=True)
    scales /= 127
    np.maximum(scales, _LEAST, out=scales)
    distances = rows / scales
    return np.rint(distances, out=distances).astype(np.int8), scales[..., 0]
