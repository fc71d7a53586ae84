"""Quantization to 8 bits, with a scale for each row and rotated keys.

A row r of values is stored as integers ``round(r / s)``, half to even, with ``s = max|r| / 127``.
No number is off by more than ``s / 2``. But s is at least 2**-126, the smallest normal float32
number: rows whose largest magnitude is below 127 times this number, 1.5e-36, have fewer steps. A
key k is stored as ``H k / n`` in the same way, and the kernels multiply it by ``H q``. H is a
Hadamard matrix for each group of n dimensions, where n is the largest power of two that divides
head_dim. Since ``H H = n``, no product of a query and a key changes. Keys of real models have a few
channels that are far larger than the others and would make scales coarse. H spreads them over all
channels (Ashkboos et al. 2024, "QuaRot"; see `docs/numerics.md` for the effect). The stored numbers
of a token depend only on this token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._cache.storage.rows import SCALE_TYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.state import PerEntry

    Array = NDArray[Any]


def quantized(keys: Array, values: Array, counts: PerEntry) -> list[Array]:
    """Return the stored form of new tokens: keys, values, and the scales of both.

    `counts` is the number of real tokens in each entry. The other tokens are arbitrary.
    """
    keys, values = _as_floats(keys), _as_floats(values)
    new = keys.shape[2]
    if not isinstance(counts, int) and int(counts.min()) < new:
        is_real = (np.arange(new) < counts[:, None])[:, None, :, None]
        keys, values = (np.where(is_real, rows, SCALE_TYPE.type(0)) for rows in (keys, values))
    key_rows, key_scales = _rounded("key", keys, rotates=True)
    value_rows, value_scales = _rounded("value", values, rotates=False)
    return [key_rows, value_rows, key_scales, value_scales]


def _as_floats(rows: Array) -> Array:
    if rows.dtype == SCALE_TYPE:
        return np.ascontiguousarray(rows)
    with np.errstate(over="ignore"):  # `_rounded` raises an error
        return np.ascontiguousarray(rows, SCALE_TYPE)


def _rounded(name: str, rows: Array, *, rotates: bool) -> tuple[Array, Array]:
    """Return rows as integers, and their scales."""
    integers, scales, are_finite = _core.quantize_rows(rows, rotates)
    if not are_finite:
        bad = rows[~np.isfinite(rows)][0]
        raise ValueError(f"{name} must be finite in float32 to be stored as int8, got {bad}")
    return integers, scales


def restored(rows: Array, scales: Array, *, is_rotated: bool) -> Array:
    """Return the float32 numbers that integers and scales represent."""
    # Scales of a damaged file may produce infinite numbers, but no warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = rows * scales[..., None]
        return _rotated_back(numbers) if is_rotated else numbers


def _rotated_back(rows: Array) -> Array:
    """Multiply by H, in one pass over all rows for each factor of two."""
    dim = rows.shape[-1]
    half = 1
    while dim % (2 * half) == 0:
        pairs = rows.reshape(*rows.shape[:-1], dim // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        rows = np.stack([first + second, first - second], axis=-2).reshape(rows.shape)
        half *= 2
    return rows
