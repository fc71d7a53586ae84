"""The encoding of numbers in a page: levels of a logarithmic scale, halves and compressed text.

`page/payload.js` and `page/scale.js` read this encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._show.colors import DECADES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard._arguments.arrays import Array


TOP = 254
NOT_A_NUMBER = 255
_SMALLEST_HALF = 2.0**-24
# The largest number of an array becomes 2 ** 14 to 2 ** 15, so that numbers 2 ** 28 times smaller
# are normal float16 numbers. Pages compute with float32, in which the smallest exponent keeps
# numbers normal.
_TOP_EXPONENT, _LEAST_EXPONENT = 15, -100


class Halves(NamedTuple):
    """Numbers as float16 times a power of two."""

    numbers: Array
    exponent: int


def levels(weights: Array) -> NDArray[np.uint8]:
    """Return weights as levels: 0 for 1e-6 or less, 254 for 1, and 255 for NaN."""
    bounded = np.clip(weights, 10.0**-DECADES, 1)
    with np.errstate(invalid="ignore"):
        scaled = np.rint(TOP * (np.log10(bounded, dtype=np.float64) + DECADES) / DECADES)
    found = np.where(np.isnan(scaled), NOT_A_NUMBER, scaled)
    return found.astype(np.uint8)


def halves(numbers: Array) -> Halves:
    """Return numbers as float16, with a relative error of at most 2 ** -11.

    The bound holds down to 2 ** -28 of the largest number. Positive numbers stay positive, because
    0 means hidden.
    """
    sizes = np.abs(numbers[np.isfinite(numbers)])
    largest = float(sizes.max(initial=0))
    exponent = max(int(np.frexp(largest)[1]) - _TOP_EXPONENT, _LEAST_EXPONENT) if largest else 0
    with np.errstate(over="ignore", under="ignore"):
        wide = numbers.astype(np.result_type(numbers.dtype, np.float32), copy=False)
        result = np.ldexp(wide, -exponent).astype("<f2")
    result[(result == 0) & (numbers > 0)] = _SMALLEST_HALF
    return Halves(result, exponent)


def short_halves(numbers: Array) -> Halves:
    """Return numbers as `halves` with 8 significant bits, which compress better.

    The relative error is at most 2 ** -8 + 2 ** -11, with the same limit.
    """
    result, exponent = halves(numbers)
    bits = result.view("<u2").astype(np.uint32)
    is_long = np.isfinite(result) & (bits > 0xF)
    rounded = np.where(is_long, (bits + 3 + (bits >> 3 & 1)) & 0xFFF8, bits)
    return Halves(rounded.astype("<u2").view("<f2"), exponent)


def places(keys: Array, kv_len: int) -> Array:
    """Return keys ``(q_len, count)`` relative to their query, modulo 2 ** 16 or 2 ** 32.

    A head that attends at a fixed distance has the same numbers in all rows, which compress well.
    """
    size = 2 if kv_len <= 2**16 else 4
    relative: Array = keys - np.arange(len(keys))[:, None]
    wrapped: Array = np.mod(relative, 2 ** (8 * size)).astype(f"<u{size}")
    return wrapped


def packed(arrays: Mapping[str, Array | Halves]) -> tuple[bytes, list[list[Any]]]:
    """Return arrays as compressed text, and the name, type, shape and exponent of each array.

    A reader must multiply the numbers by two to the power of the exponent.

    The bytes of each array are ordered by their place in the number: the first bytes of all numbers
    come first, because they are similar.
    """
    import base64
    import zlib

    parts, listed = [], []
    for name, given in arrays.items():
        array, exponent = given if isinstance(given, Halves) else (given, 0)
        rows = np.ascontiguousarray(array).reshape(-1)
        columns = rows.view(np.uint8).reshape(rows.size, array.dtype.itemsize)
        parts.append(columns.T.tobytes())
        kind = array.dtype.kind + str(8 * array.dtype.itemsize)
        listed.append([name, kind, list(array.shape), exponent])
    # Browsers read the gzip format of zlib, whose header contains no time here.
    packer = zlib.compressobj(7, zlib.DEFLATED, 31)
    stream = packer.compress(b"".join(parts)) + packer.flush()
    return base64.b64encode(stream), listed
