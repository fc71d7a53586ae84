"""Checks of the arguments of cache calls, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import stored
from regard._arguments.hints import column_hint
from regard._arguments.numbers import count, integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.geometry import LayerGeometry

    Array = NDArray[Any]


def new_tokens(
    geometry: LayerGeometry, batch: int, key: ArrayLike, value: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Return key and value as arrays with all four axes and storable types.

    A value is None if values are in the keys.
    """
    keys = _with_batch(stored("key", key), batch)
    sizes = (batch, geometry.kv_heads)
    if keys.ndim != 4 or keys.shape[:2] != sizes or keys.shape[3] != geometry.head_dim:
        swapped = keys.ndim == 4 and (keys.shape[0], keys.shape[2]) == sizes
        hint = ": pass key.swapaxes(1, 2), and value likewise, if the heads come after the length"
        raise ValueError(
            f"key must be ({batch}, {geometry.kv_heads}, new, {geometry.head_dim}), got shape "
            f"{np.shape(key)}{hint if swapped else ''}"
        )
    return keys, _values(geometry, keys, value, batch)


def packed_tokens(
    geometry: LayerGeometry, key: ArrayLike, value: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Return packed key and value, (tokens, kv_heads, dim), as views (1, kv_heads, tokens, dim)."""
    keys = stored("key", key)
    if keys.ndim != 3 or keys.shape[1:] != (geometry.kv_heads, geometry.head_dim):
        raise ValueError(
            f"key must be (tokens, {geometry.kv_heads}, {geometry.head_dim}), got shape "
            f"{np.shape(key)}"
        )
    values = _values(geometry, keys, value, None)
    return keys.swapaxes(0, 1)[None], None if values is None else values.swapaxes(0, 1)[None]


def _values(
    geometry: LayerGeometry, keys: Array, value: ArrayLike | None, batch: int | None
) -> Array | None:
    """Return values with the axes of keys, or None if the cache has them in its keys."""
    if geometry.value_from_key:
        if value is not None:
            raise TypeError(
                "value must be left out: the values of this cache are the first "
                f"{geometry.value_dim} numbers of its keys (value_from_key=True)"
            )
        return None
    if value is None:
        raise TypeError("value must be given, unless the cache has value_from_key=True")
    given = stored("value", value)
    values = _with_batch(given, batch)
    wanted = (*keys.shape[:-1], geometry.value_dim)
    if values.shape != wanted:
        raise ValueError(f"value must be {wanted}, got shape {given.shape}")
    return values


def _with_batch(array: Array, batch: int | None) -> Array:
    return array[None] if array.ndim == 3 and batch == 1 else array


def new_lengths(batch: int, lengths: ArrayLike | None, new: int) -> Array | None:
    """Return the number of real new tokens of each entry, or None if all are real."""
    if lengths is None:
        return None
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
    number = count(name, entry)
    if number >= batch:
        raise ValueError(f"{name} must be {_numbers(batch)}, got {number}")
    return number


def _numbers(batch: int) -> str:
    return f"from 0 to {batch - 1}" if batch else "the number of an entry (there are none)"


def left_entries(dropped: ArrayLike, batch: int) -> Array:
    """Return the entries that remain when some are dropped."""
    return np.delete(np.arange(batch), existing_entries(dropped, batch))


def existing_entries(entries: ArrayLike, batch: int) -> Array:
    """Return the numbers of entries that exist."""
    numbers = integers("entries", entries, "an int or a sequence of integers")
    if numbers.ndim > 1:
        raise ValueError(f"entries must be an int or have one axis, got shape {numbers.shape}")
    for number in numbers.flat:
        if not 0 <= number < batch:
            raise ValueError(f"entries must be {_numbers(batch)}, got {number}")
    return numbers.reshape(-1).astype(np.int64)


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
