"""Single keys whose weight is asked for: the one before each query, and where a text repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]
    Integers = NDArray[np.int64]

_FAR = 2**62


def queries_after_a_key(query: Array, key: Array, options: Mapping[str, Any]) -> Integers:
    """Return how many queries of each batch entry stand one position after one of its keys."""
    before = _positions(query, key, options) - 1
    first, end = _bounds(key, options)
    return np.asarray(((before >= first) & (before < end)).sum(axis=-1))


def induction_keys(
    query: Array, key: Array, tokens: ArrayLike, options: Mapping[str, Any]
) -> Integers:
    """Return the key after the last earlier occurrence of each query's token, -1 where none is.

    The shape is (..., q_len), with the axes of the batch.
    """
    kv_len = key.shape[-2]
    numbers = np.asarray(tokens)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"tokens must be an array of integers, got {numbers.dtype}")
    positions = _positions(query, key, options)
    batch = positions.shape[:-1]
    try:
        numbers = np.broadcast_to(numbers, (*batch, kv_len))
    except ValueError:
        raise ValueError(
            f"tokens must broadcast to the batch axes and kv_len, {(*batch, kv_len)}, got shape "
            f"{numbers.shape}"
        ) from None
    after = np.empty((*batch, kv_len + 1), np.int64)
    after[..., kv_len] = -1  # of queries that stand beside all keys
    for entry in np.ndindex(*batch):
        after[(*entry, slice(kv_len))] = _after_the_last(numbers[entry])
    is_key = (positions >= 0) & (positions < kv_len)
    return np.take_along_axis(after, np.where(is_key, positions, kv_len), axis=-1)


def _after_the_last(tokens: Array) -> Integers:
    order = np.argsort(tokens, kind="stable")
    before, repeats = order[:-1], tokens[order[1:]] == tokens[order[:-1]]
    after = np.full(len(tokens), -1, np.int64)
    after[order[1:][repeats]] = before[repeats] + 1
    return after


def _bounds(key: Array, options: Mapping[str, Any]) -> tuple[Integers, Integers]:
    """Return where the keys of each batch entry begin and end, to compare with positions."""
    lengths, padding = options.get("key_lengths"), options.get("left_padding")
    end = np.asarray(key.shape[-2] if lengths is None else lengths, np.int64)
    first = np.asarray(0 if padding is None else padding, np.int64)
    return first[..., None], end[..., None]


def _positions(query: Array, key: Array, options: Mapping[str, Any]) -> Integers:
    """Return the positions of the queries of each batch entry, of shape (..., q_len)."""
    q_len = query.shape[-2]
    batch = np.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    offset = options.get("query_offset", 0)
    if isinstance(offset, str):
        first = _bounds(key, options)[1] - q_len
    else:
        first = np.clip(np.asarray(offset, np.int64), -_FAR, _FAR)[..., None]
    return np.broadcast_to(first + np.arange(q_len), (*batch, q_len))
