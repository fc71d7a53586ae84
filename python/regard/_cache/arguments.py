"""Checks of the arguments of cache calls, before anything is written."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, stored
from regard._arguments.hints import column_hint, level_of_caller
from regard._arguments.numbers import MOST, count, integers
from regard._cache.storage.geometry import default_page_size

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.state import PerEntry

    Array = NDArray[Any]

_LARGEST = np.array(np.finfo(np.float32).max)


def new_tokens(
    geometry: Geometry, batch: int, key: ArrayLike, value: ArrayLike
) -> tuple[Array, Array]:
    """Return key and value as arrays with all four axes and storable types."""
    keys = _with_batch(stored("key", key), batch)
    sizes = (batch, geometry.kv_heads)
    if keys.ndim != 4 or keys.shape[:2] != sizes or keys.shape[3] != geometry.head_dim:
        swapped = keys.ndim == 4 and (keys.shape[0], keys.shape[2]) == sizes
        hint = ": pass key.swapaxes(1, 2), and value likewise, if the heads come after the length"
        raise ValueError(
            f"key must be ({batch}, {geometry.kv_heads}, new, {geometry.head_dim}), got shape "
            f"{np.shape(key)}{hint if swapped else ''}"
        )
    values = _with_batch(stored("value", value), batch)
    wanted = (*keys.shape[:3], geometry.value_dim)
    if values.shape != wanted:
        raise ValueError(f"value must be {wanted}, got shape {np.shape(value)}")
    return keys, values


def packed_tokens(geometry: Geometry, key: ArrayLike, value: ArrayLike) -> tuple[Array, Array]:
    """Return packed key and value, (tokens, kv_heads, dim), as views (1, kv_heads, tokens, dim)."""
    keys, values = stored("key", key), stored("value", value)
    if keys.ndim != 3 or keys.shape[1:] != (geometry.kv_heads, geometry.head_dim):
        raise ValueError(
            f"key must be (tokens, {geometry.kv_heads}, {geometry.head_dim}), got shape "
            f"{np.shape(key)}"
        )
    wanted = (*keys.shape[:2], geometry.value_dim)
    if values.shape != wanted:
        raise ValueError(f"value must be {wanted}, got shape {np.shape(value)}")
    return keys.swapaxes(0, 1)[None], values.swapaxes(0, 1)[None]


def _with_batch(array: Array, batch: int) -> Array:
    return array[None] if array.ndim == 3 and batch == 1 else array


def as_stored(name: str, array: Array, dtype: np.dtype[Any], counts: PerEntry) -> Array:
    """Return new tokens as arrays that can be written to pages, which converts narrow types."""
    is_narrow = array.dtype.itemsize <= 4 and dtype.itemsize <= 4
    if array.dtype != dtype and not is_narrow:
        array = converted(name, array, dtype, counts)
    size = array.dtype.itemsize
    strides = array.strides
    fits = array.flags.aligned and all(stride % size == 0 for stride in strides)
    is_dense = strides[-1] == size or array.shape[-1] == 1
    return array if fits and is_dense else array.copy(order="C")


def converted(name: str, array: Array, dtype: np.dtype[Any], counts: PerEntry) -> Array:
    """Return new tokens in the cache's type, of which the first `counts` are real.

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
    if not isinstance(counts, int):
        is_real = np.arange(array.shape[2]) < counts[:, None]
        became_infinite &= is_real[:, None, :, None]
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


def new_lengths(batch: int, lengths: ArrayLike | None, new: int) -> int | Array:
    """Return the number of real new tokens, for all entries or per entry."""
    if lengths is None:
        return new
    wanted = f"an integer array of shape ({batch},)"
    numbers = integers("lengths", lengths, wanted)
    if numbers.shape != (batch,):
        hint = column_hint("lengths", numbers.shape, (batch,))
        raise ValueError(f"lengths must be {wanted}, got shape {numbers.shape}{hint}")
    for number in numbers:
        if not 0 <= number <= new:
            raise ValueError(f"lengths must be from 0 to {new}, the new tokens given, got {number}")
    return numbers.astype(np.int64)


def shorter_lengths(length: ArrayLike, lengths: Array) -> Array:
    """Return the length to which each entry is truncated."""
    wanted = f"an int or an integer array of shape {lengths.shape}"
    numbers = integers("length", length, wanted)
    if numbers.ndim == 0:
        longest = int(lengths.max(initial=0))
        if not 0 <= numbers <= longest:
            raise ValueError(
                f"length must be from 0 to {longest}, the cache's length, got {numbers}"
            )
        return np.minimum(lengths, numbers.astype(np.int64))
    if numbers.shape != lengths.shape:
        hint = column_hint("length", numbers.shape, lengths.shape)
        raise ValueError(f"length must be {wanted}, got shape {numbers.shape}{hint}")
    for entry, (number, own) in enumerate(zip(numbers, lengths, strict=True)):
        if not 0 <= number <= own:
            raise ValueError(
                f"length must be from 0 to {own}, the length of batch entry {entry}, got {number}"
            )
    return numbers.astype(np.int64)


def entries(batch_indices: ArrayLike, batch: int) -> Array:
    """Return the indices of the selected entries, -1 for an empty entry."""
    numbers = integers("batch_indices", batch_indices, "a sequence of integers")
    if numbers.ndim != 1:
        raise ValueError(f"batch_indices must have one axis, got shape {numbers.shape}")
    for number in numbers:
        if not -1 <= number < batch:
            raise ValueError(
                f"batch_indices must be {_numbers(batch)}, or -1 for an empty entry, got {number}"
            )
    return numbers.astype(np.int64)


def entry_number(name: str, entry: Any, batch: int) -> int:
    """Return the number of an existing entry."""
    number = count(name, entry, maximum=MOST)
    if number >= batch:
        raise ValueError(f"{name} must be {_numbers(batch)}, got {number}")
    return number


def _numbers(batch: int) -> str:
    return f"from 0 to {batch - 1}" if batch else "the number of an entry (there are none)"


def left_entries(dropped: ArrayLike, batch: int) -> Array:
    """Return the entries that remain when some are dropped."""
    numbers = integers("entries", dropped, "an int or a sequence of integers")
    if numbers.ndim > 1:
        raise ValueError(f"entries must be an int or have one axis, got shape {numbers.shape}")
    for number in numbers.flat:
        if not 0 <= number < batch:
            raise ValueError(f"entries must be {_numbers(batch)}, got {number}")
    return np.delete(np.arange(batch), numbers.reshape(-1).astype(np.int64))


def kept_positions(positions: ArrayLike, start: int, length: int) -> Array:
    """Return the positions of the tokens to keep, which are from `start` to before `length`."""
    numbers = integers("positions", positions, "a sequence of integers")
    if numbers.ndim != 1:
        raise ValueError(f"positions must have one axis, got shape {numbers.shape}")
    numbers = numbers.astype(np.int64)
    if numbers.size and start == length:
        raise ValueError(
            f"positions must be empty, since the last append added no tokens to the entry, got "
            f"{numbers[0]}"
        )
    if numbers.size and not start <= numbers.min() <= numbers.max() < length:
        wrong = numbers[(numbers < start) | (numbers >= length)][0]
        raise ValueError(
            f"positions must be from {start} to {length - 1}, the tokens of the last append, got "
            f"{wrong}"
        )
    if (np.diff(numbers) <= 0).any():
        at = int(np.argmax(np.diff(numbers) <= 0))
        raise ValueError(
            f"positions must increase, got {numbers[at + 1]} after {numbers[at]} at index {at + 1}"
        )
    return numbers


def fitting_query(geometry: Geometry, batch: int, query: ArrayLike) -> Array:
    """Return the query as an array of four axes, or of three if the batch is 1.

    The attention call checks its type.
    """
    array = query if type(query) is np.ndarray else as_array("query", query)
    shape = array.shape
    axes = len(shape)
    is_known = (axes == 4 and shape[0] == batch) or (axes == 3 and batch == 1)
    if not is_known or shape[-1] != geometry.head_dim:
        raise ValueError(
            f"query must be ({batch}, heads, q_len, {geometry.head_dim}), got shape {shape}"
        )
    _check_heads(geometry, shape[-3], shape)
    return array


def fitting_packed_query(geometry: Geometry, query: ArrayLike) -> Array:
    """Return packed queries as an array, whose type the attention call checks."""
    array = query if type(query) is np.ndarray else as_array("query", query)
    shape = array.shape
    if len(shape) != 3 or shape[2] != geometry.head_dim:
        raise ValueError(f"query must be (tokens, heads, {geometry.head_dim}), got shape {shape}")
    _check_heads(geometry, shape[1], shape)
    return array


def _check_heads(geometry: Geometry, heads: int, shape: tuple[int, ...]) -> None:
    if heads % geometry.kv_heads:
        raise ValueError(
            f"query must have a multiple of the {geometry.kv_heads} kv_heads as heads, got {heads} "
            f"in shape {shape}"
        )


def size_of_pages(page_size: int | None, capacity: int | None, keep_last: int | None) -> int:
    """Return the number of tokens in a page."""
    if page_size is None:
        return default_page_size(capacity, keep_last)
    tokens = count("page_size", page_size, minimum=16, maximum=MOST)
    if tokens % 16:
        raise ValueError(f"page_size must be a multiple of 16, got {tokens}")
    return tokens


def kept_tokens(keep_last: int | None, keep_first: int) -> tuple[int | None, int]:
    """Return the numbers of last and first tokens to keep."""
    first = count("keep_first", keep_first, maximum=MOST)
    if keep_last is None:
        if first:
            raise ValueError(f"keep_first must be 0 without keep_last, got {first}")
        return None, 0
    return count("keep_last", keep_last, minimum=1, maximum=MOST), first
