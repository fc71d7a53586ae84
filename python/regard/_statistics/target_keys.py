"""Single keys whose weight is asked for: the one before each query, and where a text repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import as_array, broadcasts_to
from regard._arguments.numbers import integers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]
    Integers = NDArray[np.int64]

_FAR = 2**62


class Sizes(NamedTuple):
    """Of one call, or of one of its sequences."""

    batch: tuple[int, ...]
    q_len: int
    kv_len: int


def queries_after_a_key(sizes: Sizes, options: Mapping[str, Any]) -> Integers:
    """Return how many queries of each batch entry stand one position after one of its keys."""
    before = _positions(sizes, options) - 1
    first, end = _bounds(sizes, options)
    return np.asarray(((before >= first) & (before < end)).sum(axis=-1))


def induction_keys(sizes: Sizes, tokens: ArrayLike, options: Mapping[str, Any]) -> Integers:
    """Return the key after the last earlier occurrence of each query's token, -1 where none is.

    The shape is (..., q_len), with the axes of the batch.
    """
    batch, _, kv_len = sizes
    numbers = token_numbers(tokens)
    if not broadcasts_to(numbers.shape, (*batch, kv_len)):
        raise ValueError(
            f"tokens must broadcast to the batch axes and kv_len, {(*batch, kv_len)}, got shape "
            f"{numbers.shape}"
        )
    numbers = np.broadcast_to(numbers, (*batch, kv_len))
    after = np.empty((*batch, kv_len + 1), np.int64)
    after[..., kv_len] = -1  # of queries that stand beside all keys
    for entry in np.ndindex(*batch):
        after[(*entry, slice(kv_len))] = _after_the_last(numbers[entry])
    positions = _positions(sizes, options)
    is_key = (positions >= 0) & (positions < kv_len)
    return np.take_along_axis(after, np.where(is_key, positions, kv_len), axis=-1)


def token_numbers(tokens: ArrayLike) -> Array:
    """Return a number for each token; equal texts have equal numbers."""
    array = as_array("tokens", tokens)
    if array.dtype.kind not in "UT" and not (
        array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat)
    ):
        return integers("tokens", tokens, "an array of integers or texts")
    _, numbers = np.unique(array, return_inverse=True)
    return numbers.reshape(array.shape)


def _after_the_last(tokens: Array) -> Integers:
    order = np.argsort(tokens, kind="stable")
    before, repeats = order[:-1], tokens[order[1:]] == tokens[order[:-1]]
    after = np.full(len(tokens), -1, np.int64)
    after[order[1:][repeats]] = before[repeats] + 1
    return after


def _bounds(sizes: Sizes, options: Mapping[str, Any]) -> tuple[Integers, Integers]:
    """Return where the keys of each batch entry begin and end, to compare with positions."""
    lengths, padding = options.get("key_lengths"), options.get("left_padding")
    end = np.asarray(sizes.kv_len if lengths is None else lengths, np.int64)
    first = np.asarray(0 if padding is None else padding, np.int64)
    return first[..., None], end[..., None]


def _positions(sizes: Sizes, options: Mapping[str, Any]) -> Integers:
    """Return the positions of the queries of each batch entry, of shape (..., q_len)."""
    offset = options.get("query_offset", 0)
    if isinstance(offset, str):
        first = _bounds(sizes, options)[1] - sizes.q_len
    else:
        first = np.clip(np.asarray(offset, np.int64), -_FAR, _FAR)[..., None]
    return np.broadcast_to(first + np.arange(sizes.q_len), (*sizes.batch, sizes.q_len))


class Sequence(NamedTuple):
    """One of some packed sequences: its rows, and the call that it would be alone."""

    queries: slice
    keys: slice
    sizes: Sizes
    options: dict[str, Any]


def sequences_of(
    query_starts: ArrayLike, key_starts: ArrayLike, options: Mapping[str, Any]
) -> Iterator[Sequence]:
    """Return packed sequences, whose starts and options have been checked."""
    queries, keys = (np.asarray(starts).tolist() for starts in (query_starts, key_starts))
    numbers = {}
    for name in ("query_offset", "key_lengths", "left_padding"):
        value = options.get(name)
        if value is not None and not isinstance(value, str):
            numbers[name] = np.broadcast_to(np.asarray(value), (len(queries) - 1,))
    for i in range(len(queries) - 1):
        own_queries, own_keys = slice(*queries[i : i + 2]), slice(*keys[i : i + 2])
        sizes = Sizes((), own_queries.stop - own_queries.start, own_keys.stop - own_keys.start)
        own = {name: each[i] for name, each in numbers.items()}
        if isinstance(options.get("query_offset"), str):
            own["query_offset"] = options["query_offset"]
        yield Sequence(own_queries, own_keys, sizes, own)
