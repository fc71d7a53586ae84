"""How numbers lie in a page: levels of a logarithmic scale, halves, and compressed text.

`page/payload.js` and `page/scale.js` read what is written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]

DECADES = 6
TOP = 254
NOT_A_NUMBER = 255
_LARGEST_HALF = 65504.0
_SMALLEST_HALF = 2.0**-24


def levels(weights: Array) -> NDArray[np.uint8]:
    """Return weights as levels: 0 for 1e-6 and less, 254 for 1, and 255 for NaN."""
    bounded = np.clip(weights, 10.0**-DECADES, 1)
    with np.errstate(invalid="ignore"):
        scaled = np.rint(TOP * (np.log10(bounded, dtype=np.float64) + DECADES) / DECADES)
    found = np.where(np.isnan(scaled), NOT_A_NUMBER, scaled)
    return found.astype(np.uint8)


def halves(numbers: Array) -> Array:
    """Return numbers as float16 where they fit, and else as float32.

    Positive numbers stay positive, since 0 stands for what is hidden.
    """
    finite = numbers[np.isfinite(numbers)]
    if finite.size and np.abs(finite).max() > _LARGEST_HALF:
        return numbers.astype("<f4")
    with np.errstate(over="ignore", under="ignore"):
        result = numbers.astype("<f2")
    result[(result == 0) & (numbers > 0)] = _SMALLEST_HALF
    return result


def short_halves(numbers: Array) -> Array:
    """Return numbers as `halves` with 8 significant bits, which compress better.

    The relative error is at most 2 ** -8.
    """
    result = halves(numbers)
    if result.dtype.itemsize != 2:
        return result
    bits = result.view("<u2").astype(np.uint32)
    is_finite = np.isfinite(result)
    rounded = np.where(is_finite & (bits > 0xF), (bits + 3 + (bits >> 3 & 1)) & 0xFFF8, bits)
    rounded = np.where(is_finite & ((rounded & 0x7C00) == 0x7C00), bits & 0xFFF8, rounded)
    shortened: Array = rounded.astype("<u2").view("<f2")
    return shortened


def places(keys: Array, kv_len: int) -> Array:
    """Return keys ``(q_len, count)`` relative to their query, modulo 2 ** 16 or 2 ** 32.

    Heads that look at a fixed distance have the same numbers in all rows, which compress well.
    """
    size = 2 if kv_len <= 2**16 else 4
    relative: Array = keys - np.arange(len(keys))[:, None]
    wrapped: Array = np.mod(relative, 2 ** (8 * size)).astype(f"<u{size}")
    return wrapped


def packed(arrays: Mapping[str, Array]) -> tuple[bytes, list[list[Any]]]:
    """Return arrays as compressed text, and the name, type and shape of each.

    The bytes of each array are ordered by their place in the number: the first bytes of all numbers
    come first, because they are alike.
    """
    import base64
    import zlib

    parts, listed = [], []
    for name, array in arrays.items():
        rows = np.ascontiguousarray(array).reshape(-1)
        columns = rows.view(np.uint8).reshape(rows.size, array.dtype.itemsize)
        parts.append(columns.T.tobytes())
        kind = array.dtype.kind + str(8 * array.dtype.itemsize)
        listed.append([name, kind, list(array.shape)])
    # Of zlib's formats, gzip's is what browsers read, and its header has no time here.
    packer = zlib.compressobj(7, zlib.DEFLATED, 31)
    stream = packer.compress(b"".join(parts)) + packer.flush()
    return base64.b64encode(stream), listed
