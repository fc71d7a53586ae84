"""What callers append to a cache and ask of it, checked before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._arguments import count, integers
from regard._arrays import as_array, stored

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.geometry import Geometry

    Array = NDArray[Any]

_MOST = 2**63 - 1  # kernels and files count in 64 bits


def size(name: str, number: int, minimum: int = 0, maximum: int = _MOST) -> int:
    """Return one of a cache's sizes, or raise an error that names it."""
    checked = count(name, number, minimum)
    if checked > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {checked}")
    return checked


def new_tokens(geometry: Geometry, key: ArrayLike, value: ArrayLike) -> tuple[Array, Array]:
    """Return key and value with all four axes."""
    if _core.are_native(key, value, value, None):
        keys, values = np.asarray(key), np.asarray(value)
    else:
        keys, values = stored("key", key), stored("value", value)
    fitting_keys = _with_batch(geometry, keys, geometry.head_dim)
    if fitting_keys is None:
        raise ValueError(
            f"key must be ({geometry.batch}, {geometry.kv_heads}, new, {geometry.head_dim}), got "
            f"shape {keys.shape}"
        )
    fitting_values = _with_batch(geometry, values, geometry.value_dim)
    if fitting_values is None or fitting_values.shape[2] != fitting_keys.shape[2]:
        raise ValueError(
            f"value must be ({geometry.batch}, {geometry.kv_heads}, {fitting_keys.shape[2]}, "
            f"{geometry.value_dim}), got shape {values.shape}"
        )
    return fitting_keys, fitting_values


def _with_batch(geometry: Geometry, array: Array, dim: int) -> Array | None:
    if array.ndim == 3 and geometry.batch == 1:
        array = array[None]
    if array.ndim != 4 or array.shape[:2] != (geometry.batch, geometry.kv_heads):
        return None
    return array if array.shape[3] == dim else None


def new_lengths(geometry: Geometry, lengths: ArrayLike | None, new: int) -> Array:
    """Return how many of the new tokens are real, for each entry: all where nothing is said."""
    if lengths is None:
        return np.full(geometry.batch, new, np.int64)
    wanted = f"an integer array of shape ({geometry.batch},)"
    numbers = integers("lengths", lengths, wanted)
    if numbers.shape != (geometry.batch,):
        raise ValueError(f"lengths must be {wanted}, got shape {numbers.shape}")
    for number in numbers:
        if not 0 <= number <= new:
            raise ValueError(f"lengths must be from 0 to {new}, the new tokens given, got {number}")
    return numbers.astype(np.int64)


def shorter_lengths(length: ArrayLike, lengths: Array) -> Array:
    """Return what a cache is to be truncated to, for each entry."""
    wanted = f"an int or an integer array of shape {lengths.shape}"
    numbers = integers("length", length, wanted)
    if numbers.ndim == 0:
        longest = int(lengths.max())
        if not 0 <= numbers <= longest:
            raise ValueError(f"length must be from 0 to {longest}, the cache's own, got {numbers}")
        return np.minimum(lengths, numbers.astype(np.int64))
    if numbers.shape != lengths.shape:
        raise ValueError(f"length must be {wanted}, got shape {numbers.shape}")
    for entry, (number, own) in enumerate(zip(numbers, lengths, strict=True)):
        if not 0 <= number <= own:
            raise ValueError(
                f"length must be from 0 to {own} for batch entry {entry}, its own, got {number}"
            )
    return numbers.astype(np.int64)


def entries(batch_indices: ArrayLike, batch: int) -> list[int]:
    """Return the entries that a reordered cache is made of."""
    numbers = integers("batch_indices", batch_indices, "a sequence of integers")
    if numbers.ndim != 1 or numbers.size == 0:
        raise ValueError(f"batch_indices must be one axis of 1 or more, got shape {numbers.shape}")
    for number in numbers:
        if not 0 <= number < batch:
            raise ValueError(f"batch_indices must be from 0 to {batch - 1}, got {number}")
    return [int(number) for number in numbers]


def fitting_query(geometry: Geometry, query: ArrayLike) -> Array:
    """Return the query as an array of four axes, or of three where the batch is 1.

    Its type is looked at by the call that it is for.
    """
    array = query if type(query) is np.ndarray else as_array("query", query)
    shape = array.shape
    if len(shape) == 4:
        fits = shape[0] == geometry.batch and shape[3] == geometry.head_dim
    else:
        fits = len(shape) == 3 and geometry.batch == 1 and shape[2] == geometry.head_dim
    if not fits:
        raise ValueError(
            f"query must be ({geometry.batch}, heads, q_len, {geometry.head_dim}), got shape "
            f"{shape}"
        )
    if shape[-3] % geometry.kv_heads:
        raise ValueError(
            f"query must have a multiple of the cache's {geometry.kv_heads} kv_heads as heads, got "
            f"{shape[-3]} in shape {shape}"
        )
    return array


def size_of_pages(page_size: int | None, window: int | None) -> int | None:
    """Return how many tokens a page holds, where there are pages."""
    if page_size is None:
        return None
    tokens = size("page_size", page_size, minimum=16)
    if tokens % 16:
        raise ValueError(f"page_size must be a multiple of 16, got {tokens}")
    if window is not None:
        raise ValueError(
            f"page_size must be None with a window, got {tokens}: a ring of slots does not grow"
        )
    return tokens


def window_size(window: int | None, sink_tokens: int) -> tuple[int | None, int]:
    """Return how many tokens are kept, last and first."""
    sinks = size("sink_tokens", sink_tokens)
    if window is None:
        if sinks:
            raise ValueError(f"sink_tokens must be 0 without a window, got {sinks}")
        return None, 0
    return size("window", window, minimum=1), sinks
