"""Quantization of keys and values to 8 or 4 bits.

int8
    A row r is stored as integers ``round(r / s)``, half to even, with ``s = max|r| / 127``. No
    number is off by more than ``s / 2``. But s is at least 2**-126, the smallest normal float32
    number: rows whose largest magnitude is below 127 times this number, 1.5e-36, have fewer steps.
float8_e4m3fn
    ``r / s`` is rounded to 4 bits of exponent and 3 bits of mantissa, half to even. s is given, one
    number for each head. The largest number is ``448 s``.
q4_1
    Each 32 numbers r are stored as integers ``round((r - m) / s)`` from 0 to 15, with
    ``m = min(r)`` and ``s = (max(r) - m) / 15``, both rounded to float16.

A key k is stored as ``H k`` divided by a power of two, and the kernels multiply it by ``H q``. H is
a Hadamard matrix for each group of n dimensions, where n is the largest power of two that divides
head_dim. Since ``H H = n``, no product of a query and a key changes. Keys of real models have a few
channels that are far larger than the others and would make scales coarse. H spreads them over all
channels (Ashkboos et al. 2024, "QuaRot"; see `docs/numerics.md` for the effect). The stored numbers
of a token depend only on this token.

With `key_means` m, keys are k - m in this, and the kernels add the score of m.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._cache.types import FLOAT8_UNITS, GROUP, SCALE_TYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.geometry import LayerGeometry
    from regard._cache.types import StoredType

    Array = NDArray[Any]


def quantized(
    geometry: LayerGeometry,
    means: Array | None,
    keys: Array,
    values: Array | None,
    is_real: Array | None,
) -> list[Array | None]:
    """Return the stored form of new tokens: keys, values, and the scales of both if they are new.

    Tokens that are not real are arbitrary. Keys that contain the values are not rotated.
    """
    rotates = not geometry.value_from_key
    given = rows = [_as_floats(each) for each in (keys, values) if each is not None]
    if means is not None:
        with np.errstate(over="ignore"):
            given[0] = given[0] - means[:, None]
    if is_real is not None:
        given = rows = [np.where(is_real, each, SCALE_TYPE.type(0)) for each in rows]
    fixed = geometry.scale_arrays()
    if fixed:
        with np.errstate(over="ignore", under="ignore"):  # infinite numbers are refused
            rows = [
                each / scales[:, None, None] for each, scales in zip(given, fixed, strict=False)
            ]
    parts: list[Array | None] = [None] * 4
    for number, (name, each) in enumerate(zip(("key", "value"), rows, strict=False)):
        is_rotated = rotates and number == 0
        stored, scales, are_held = _core.quantize_rows(each, geometry.dtype.form, is_rotated)
        if not are_held:
            raise ValueError(_refused(name, given[number], each, geometry.dtype, is_rotated))
        parts[number], parts[2 + number] = stored, scales
    return parts


def _as_floats(rows: Array) -> Array:
    if rows.dtype == SCALE_TYPE:
        return np.ascontiguousarray(rows)
    with np.errstate(over="ignore"):  # infinite numbers are refused
        return np.ascontiguousarray(rows, SCALE_TYPE)


def _refused(name: str, given: Array, scaled: Array, stored: StoredType, is_rotated: bool) -> str:
    """Return why rows, divided by their scales, cannot be stored."""
    bad = given[~np.isfinite(given)]
    if bad.size or stored.scaled == "rows":
        return f"{name} must be finite in float32 to be stored as {stored.name}, got {bad[0]}"
    where = ""
    if is_rotated:
        where = " after the rotation of keys"
        with np.errstate(over="ignore", invalid="ignore"):
            bits = (scaled.shape[-1] & -scaled.shape[-1]).bit_length() - 1
            scaled = _times_h(scaled) * SCALE_TYPE.type(0.5 ** (bits // 2))
    largest = np.nan_to_num(abs(scaled), nan=np.inf, posinf=np.inf).max()
    if stored.scaled == "heads":
        return (
            f"{name} must be at most 448 times {name}_scales in magnitude{where} to be stored as "
            f"{stored.name}, got up to {largest:.6g} times: choose larger {name}_scales"
        )
    return (
        f"{name} must be at most 65504 in magnitude{where} to be stored as {stored.name}, got up "
        f"to {largest:.6g}"
    )


def restored(stored: StoredType, rows: Array, scales: Array, *, is_rotated: bool) -> Array:
    """Return the float32 numbers that stored numbers and their scales represent."""
    # Scales of a damaged file may produce infinite numbers, but no warnings.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if stored.scaled == "groups":
            numbers = _of_groups(rows, scales)
        elif stored.scaled == "heads":
            numbers = _FLOAT8[rows] * scales[..., None]
        else:
            numbers = rows * scales[..., None]
        return _rotated_back(numbers, stored) if is_rotated else numbers


def _of_groups(rows: Array, scales: Array) -> Array:
    """Return numbers from bytes (heads, tokens, dim / 2) and scales (heads, tokens, dim / 16)."""
    heads, tokens, size = rows.shape
    groups = 2 * size // GROUP
    parts = rows.reshape(heads, tokens, groups, GROUP // 2)
    integers = np.concatenate([parts & 15, parts >> 4], axis=-1)
    each = scales.reshape(heads, tokens, groups, 2).astype(SCALE_TYPE)
    numbers: Array = integers * each[..., :1] + each[..., 1:]
    return numbers.reshape(heads, tokens, 2 * size)


def _float8_numbers() -> Array:
    """Return the number of each byte of E4M3, as kernels read it."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    whole = np.minimum(exponent, 1)  # 0 in subnormal numbers, whose exponent is the least
    magnitude = (whole + mantissa / 8) * 2.0 ** (np.maximum(exponent, 1) - 7)
    numbers = np.where(byte & 128, -magnitude, magnitude)
    numbers[byte & 127 == 127] = np.nan
    as_read: Array = numbers.astype(SCALE_TYPE) / FLOAT8_UNITS
    return as_read


_FLOAT8 = _float8_numbers()


def _rotated_back(rows: Array, stored: StoredType) -> Array:
    """Return keys from rotated keys."""
    dim = rows.shape[-1]
    rows = _times_h(rows)
    if stored.scaled == "rows":  # which have been divided by the size of a group
        return rows
    bits = (dim & -dim).bit_length() - 1
    return rows * SCALE_TYPE.type(0.5 ** (bits - bits // 2))


def _times_h(rows: Array) -> Array:
    """Multiply by H, in one pass over all rows for each factor of two."""
    dim = rows.shape[-1]
    half = 1
    while dim % (2 * half) == 0:
        pairs = rows.reshape(*rows.shape[:-1], dim // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        rows = np.stack([first + second, first - second], axis=-2).reshape(rows.shape)
        half *= 2
    return rows


def stored_tokens(pages: _core.LayerPages, geometry: LayerGeometry, which: int) -> Array:
    """Return keys (0) or values (1), (batch, kv_heads, longest, dim), with 0 for missing tokens."""
    dtype = geometry.dtype
    dim = (geometry.head_dim, geometry.value_dim)[which]
    shape = (len(pages.lengths), geometry.kv_heads, pages.longest, dim)
    found = np.zeros(shape, SCALE_TYPE if dtype.is_quantized else dtype.numbers)
    size = geometry.page_size
    counts = zip(pages.lengths.tolist(), pages.evicted.tolist(), strict=True)
    for entry, (length, evicted) in enumerate(counts):
        rows = entry_tokens(pages, geometry, which, entry)
        first = min(length, geometry.first_pages * size)
        found[entry, :, :first] = rows[:, :first]
        found[entry, :, first + evicted * size : length] = rows[:, first:]
    return found


def entry_tokens(
    pages: _core.LayerPages, geometry: LayerGeometry, which: int, entry: int, start: int = 0
) -> Array:
    """Return keys (0) or values (1) of an entry, (kv_heads, tokens, dim), without evicted tokens.

    They begin with the token at `start`, which may be 0 or after the evicted tokens.
    """
    rows, dtype = entry_rows(pages, geometry, which, entry, start), geometry.dtype
    if dtype.is_quantized:
        scales = entry_rows(pages, geometry, 2 + which, entry, start)
        is_rotated = which == 0 and not geometry.value_from_key
        rows = restored(dtype, rows, scales, is_rotated=is_rotated)
    means = pages.key_means if which == 0 else None
    return rows if means is None else rows + means[:, None]


def entry_rows(
    pages: _core.LayerPages, geometry: LayerGeometry, part: int, entry: int, start: int
) -> Array:
    """Return an array of an entry as it is stored, as for `entry_tokens`.

    Parts 0 and 1 are keys and values; 2 and 3 are their scales.
    """
    size, evicted = geometry.page_size, int(pages.evicted[entry])
    before = start - evicted * size if start > 0 else 0  # tokens before `start` that are held
    held = int(pages.lengths[entry]) - evicted * size
    columns = slice(before // size, -(-held // size))
    rows = pages.arrays[part][pages.table[entry, columns]].swapaxes(0, 1)
    rows = rows.reshape(rows.shape[0], -1, *rows.shape[3:])
    skipped = columns.start * size
    return rows[:, before - skipped : held - skipped]
