"""Append tokens that must be checked or converted before they are stored."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._arguments.hints import level_of_caller
from regard._arguments.numbers import token_counts
from regard._cache import arguments
from regard._cache.quantize import quantized

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.geometry import LayerGeometry

    Array = NDArray[Any]

_LARGEST = np.array(np.finfo(np.float32).max)


def append(
    pages: _core.LayerPages,
    geometry: LayerGeometry,
    key: ArrayLike,
    value: ArrayLike | None,
    lengths: ArrayLike | None,
) -> None:
    """Append tokens (batch, kv_heads, new, dim), of which the first `lengths` are real."""
    batch = len(pages.lengths)
    keys, values = arguments.new_tokens(geometry, batch, key, value)
    counts = arguments.new_lengths(batch, lengths, keys.shape[2])
    is_real = None
    if counts is not None and (counts < keys.shape[2]).any():
        is_real = (np.arange(keys.shape[2]) < counts[:, None])[:, None, :, None]
    rows = _stored(pages, geometry, keys, values, is_real)
    append_stored(pages, geometry, rows, is_real, counts, is_packed=False)


def append_ragged(
    pages: _core.LayerPages,
    geometry: LayerGeometry,
    key: ArrayLike,
    value: ArrayLike | None,
    starts: ArrayLike,
) -> None:
    """Append packed tokens (tokens, kv_heads, dim)."""
    batch = len(pages.lengths)
    keys, values = arguments.packed_tokens(geometry, key, value)
    counts = token_counts(starts, "key", keys.shape[2], batch)
    rows = [
        None if each is None else each[0].swapaxes(0, 1)
        for each in _stored(pages, geometry, keys, values, None)
    ]
    places = np.concatenate([[0], np.cumsum(counts)])
    append_stored(pages, geometry, rows, None, places, is_packed=True)


def _stored(
    pages: _core.LayerPages,
    geometry: LayerGeometry,
    keys: Array,
    values: Array | None,
    is_real: Array | None,
) -> list[Array | None]:
    """Return the arrays that are stored: keys, values, and the scales of both.

    Scales that never change, and values in keys, are None.
    """
    if geometry.dtype.is_quantized:
        return quantized(geometry, pages.key_means, keys, values, is_real)
    both = (("key", keys), ("value", values))
    stored = [
        None if each is None else _as_stored(name, each, geometry, is_real) for name, each in both
    ]
    return [*stored, None, None]


def append_stored(
    pages: _core.LayerPages,
    geometry: LayerGeometry,
    rows: list[Array | None],
    is_real: Array | None,
    counts: Array | None,
    *,
    is_packed: bool,
) -> None:
    """Append keys, values, and the scales of both, in the form in which they are stored.

    `counts` are the numbers of tokens of each entry, or where the entries begin if tokens are
    packed.
    """
    if not _core.append_rows(pages, *rows, counts, is_packed):
        # A finite number would become infinite.
        key, value = (
            None if array is None else _converted(name, array, geometry.dtype.numbers, is_real)
            for name, array in zip(("key", "value"), rows[:2], strict=True)
        )
        _core.append_rows(pages, key, value, None, None, counts, is_packed)


def _as_stored(name: str, array: Array, geometry: LayerGeometry, is_real: Array | None) -> Array:
    """Return new tokens as an array that can be written to pages, which converts narrow types."""
    dtype = geometry.dtype.numbers
    is_narrow = array.dtype.itemsize <= 4 and dtype.itemsize <= 4
    if array.dtype != dtype and not is_narrow:
        array = _converted(name, array, dtype, is_real)
    size = array.dtype.itemsize
    strides = array.strides
    fits = array.flags.aligned and all(stride % size == 0 for stride in strides)
    is_dense = strides[-1] == size or array.shape[-1] == 1
    return array if fits and is_dense else array.copy(order="C")


def _converted(name: str, array: Array, dtype: np.dtype[Any], is_real: Array | None) -> Array:
    """Return new tokens in the cache's type.

    If a finite number becomes infinite, warn, raise an error or do nothing, according to
    `numpy.errstate`. NumPy would not name the array, would not notice the overflow in ml_dtypes
    types and would warn from this line, for which Python shows one warning per process.
    """
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    became_infinite = np.isinf(result)
    if not became_infinite.any():
        return result
    became_infinite &= np.isfinite(array)
    if is_real is not None:
        became_infinite &= is_real
    if became_infinite.any():
        # The text does not depend on the numbers, so that Python shows it once per calling line.
        _tell_of_overflow(f"overflow in {name}: finite numbers become infinite in {dtype.name}")
    return result


def _tell_of_overflow(message: str) -> None:
    """Report an overflow as `numpy.errstate` specifies."""
    wanted = np.geterr()["over"]
    if wanted == "warn":
        warnings.warn(message, RuntimeWarning, stacklevel=level_of_caller())
    elif wanted == "raise":
        raise FloatingPointError(message)
    elif wanted != "ignore":
        _LARGEST.astype(np.float16)  # NumPy calls a function, prints or logs
