"""Numbers in 8 bits: a scale for each row, and the keys' distance from a center.

A row r of values is stored as integers ``round(r / s)``, half to even, with ``s = max|r| / 127``:
none is off by more than ``s / 2``. A key is stored likewise, as its distance from the center of its
batch entry and head: in each channel the middle between the largest and the least of the first keys
that were appended there. Keys of real models have an offset that all tokens share, which would make
scales coarse (Zhang et al. 2024, "SageAttention", who take the mean away for one call; a few large
keys move a mean, and `docs/numerics.md` has what the middle does here).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.cache._rows import SCALE_TYPE, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# The scale of a row of zeros, and the least of any: smaller ones would not be precise themselves.
_LEAST = np.finfo(SCALE_TYPE).smallest_normal


def quantised(
    keys: Array, values: Array, lengths: Array, counts: Array, centers: Array
) -> tuple[Rows, Array]:
    """Return new tokens as they are stored, and the centers of all entries from now on.

    `lengths` says how many tokens each entry has, and `counts` how many of the new ones are real.
    What is not real may be anything.
    """
    # What is not finite is found below.
    with np.errstate(all="ignore"):
        keys, values = keys.astype(SCALE_TYPE, copy=False), values.astype(SCALE_TYPE, copy=False)
        new = keys.shape[2]
        if int(counts.min()) < new:
            is_real = (np.arange(new) < counts[:, None])[:, None, :, None]
            keys, values = np.where(is_real, keys, 0), np.where(is_real, values, 0)
        if not lengths.all():
            centers = _with_first(
                centers, keys, np.flatnonzero((lengths == 0) & (counts > 0)), counts
            )
        if keys.shape == values.shape:  # one token's time is that of the calls, not of the numbers
            both = np.empty((2, *keys.shape), SCALE_TYPE)
            np.subtract(keys, centers[:, :, None], out=both[0])
            both[1] = values
            (key_rows, value_rows), (key_scales, value_scales) = _rounded(both)
        else:
            key_rows, key_scales = _rounded(keys - centers[:, :, None])
            value_rows, value_scales = _rounded(values)
    for name, given, scales in (("key", keys, key_scales), ("value", values, value_scales)):
        if not np.maximum.reduce(scales, axis=None) < np.inf:
            bad = given[~np.isfinite(given)]
            got = bad[0] if bad.size else "numbers that are further apart than float32 can hold"
            raise ValueError(f"{name} must be finite in float32 to be stored as int8, got {got}")
    return Rows(key_rows, value_rows, key_scales, value_scales), centers


def _with_first(centers: Array, keys: Array, starting: Array, counts: Array) -> Array:
    """Return centers in which the entries that begin have their own."""
    centers = centers.copy()
    for entry in starting:
        own = keys[entry, :, : counts[entry]]
        centers[entry] = own.max(axis=1) / 2 + own.min(axis=1) / 2
    return centers


def _rounded(rows: Array) -> tuple[Array, Array]:
    """Return rows as integers and their scales."""
    scales = np.maximum.reduce(np.abs(rows), axis=-1, keepdims=True)
    scales /= 127
    np.maximum(scales, _LEAST, out=scales)
    distances = rows / scales
    return np.rint(distances, out=distances).astype(np.int8), scales[..., 0]
