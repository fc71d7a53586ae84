"""How caches store rows in fewer bits, in NumPy: the stored numbers, and the values that they stand
for.

Keys are rotated first. `rotated`, which int8 uses, divides by the size of a group. The other types
divide by the power of two nearest to its root instead, which is exact.
"""

import numpy as np

ALL = ("int8", "float8_e4m3fn", "q4_1")


def group_of(dim):
    """Return how many dimensions are rotated together: the largest power of two that divides
    `dim`."""
    return dim & -dim


def rotated(rows):
    """Multiply float32 rows by a Hadamard matrix for each group of dimensions, and divide by the
    group's size: the product of two rotated rows is `1 / group` of the original product."""
    dim, group = rows.shape[-1], group_of(rows.shape[-1])
    rows = rows * np.float32(1 / group)
    half = 1
    while half < group:
        pairs = rows.reshape(*rows.shape[:-1], dim // (2 * half), 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        rows = np.stack([a + b, a - b], -2).reshape(rows.shape)
        half *= 2
    return rows


def in_8_bits(rows):
    """Return float32 rows rounded to 255 steps each, half to even, as float64."""
    scales = np.abs(rows).max(-1, keepdims=True) / np.float32(127)
    scales = np.maximum(scales, np.finfo(np.float32).smallest_normal).astype(np.float64)
    return np.round((rows / scales.astype(np.float32)).astype(np.float64)) * scales


def in_float8(rows, scale=1):
    """Return float32 rows in E4M3, half to even, as float64: by the definition, not by a table."""
    rows = (rows / np.float32(scale)).astype(np.float64)
    exponents = np.maximum(np.floor(np.log2(np.where(rows == 0, 1, abs(rows)))), -6)
    steps = 2.0 ** (exponents - 3)
    rounded = np.round(rows / steps) * steps
    assert abs(rounded).max(initial=0) <= 448
    return rounded * np.float64(np.float32(scale))


def groups_of(rows):
    """Return integers, scales and minimums of float32 rows (..., dim), for each 32 numbers."""
    parts = rows.reshape(*rows.shape[:-1], rows.shape[-1] // 32, 32)
    least, most = parts.min(-1), parts.max(-1)
    minimums = least.astype(np.float16).astype(np.float32)
    spans = np.where(most > minimums, most - minimums, np.float32(0))
    scales = (spans / np.float32(15)).astype(np.float16).astype(np.float32)
    some = scales[..., None] > 0
    steps = np.divide(parts - minimums[..., None], scales[..., None], where=some,
                      out=np.zeros_like(parts))  # fmt: skip
    return np.round(np.clip(steps, 0, 15)).astype(int), scales, minimums


def in_4_bits(rows):
    """Return float32 rows in groups of 32, as float64."""
    integers, *numbers = groups_of(rows)
    scales, minimums = (part[..., None].astype(np.float64) for part in numbers)
    return (integers * scales + minimums).reshape(rows.shape)


_ROUNDED = {"int8": in_8_bits, "float8_e4m3fn": in_float8, "q4_1": in_4_bits}


def rounded(dtype, rows):
    """Return float32 rows as they are stored, if they are not rotated, as float64."""
    return _ROUNDED[str(dtype)](rows)


def is_quantized(dtype):
    """Return whether a cache's type, which may be a name, is one of these."""
    return str(dtype) in ALL


def rotated_by(dtype, rows):
    """Return float32 keys in the rotation in which they are rounded."""
    return rotated(rows) * np.float32(_share(dtype, rows.shape[-1]))


def _share(dtype, dim):
    """Return the factor by which stored keys are larger than int8 keys."""
    if str(dtype) == "int8":
        return 1
    bits = group_of(dim).bit_length() - 1
    return 2 ** (bits - bits // 2)


def held_rows(dtype, key, value):
    """Return the stored values of keys and values, as float64, with keys rotated."""
    key, value = (array.astype(np.float32) for array in (key, value))
    return rounded(dtype, rotated_by(dtype, key)), rounded(dtype, value)


def meeting(query, dtype="int8"):
    """Return queries as they are multiplied with rotated keys, in the type of the arithmetic."""
    query = query.astype(np.result_type(query, np.float32))
    number = query.dtype.type(group_of(query.shape[-1]) / _share(dtype, query.shape[-1]))
    return rotated(query) * number
