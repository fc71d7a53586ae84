"""Find the previous key of each query, and the keys at which a text repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.ma  # np.unique imports it at its first use

from regard._arguments.arrays import as_array, broadcasts_to
from regard._arguments.numbers import integers
from regard._arguments.option_table import OPTIONS
from regard._arguments.positions import Positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array, Integers


def count_queries_after_key(positions: Positions) -> Integers:
    """Return the number of queries of each batch entry that are one position after a key."""
    before = positions.of_queries() - 1
    begin, end = positions.existing()
    return np.asarray(((before >= begin[..., None]) & (before < end[..., None])).sum(axis=-1))


def induction_keys(positions: Positions, batch: tuple[int, ...], tokens: ArrayLike) -> Integers:
    """Return the key after the last earlier occurrence of each query's token, or -1.

    The shape is (..., q_len), with the axes of the batch.
    """
    kv_len = positions.kv_len
    assert kv_len is not None
    numbers = token_numbers(tokens)
    if not broadcasts_to(numbers.shape, (*batch, kv_len)):
        raise ValueError(
            f"tokens must broadcast to the batch axes and kv_len, {(*batch, kv_len)}, got shape "
            f"{numbers.shape}"
        )
    numbers = np.broadcast_to(numbers, (*batch, kv_len))
    after = np.full((*batch, kv_len + 1), -1, np.int64)  # the last for queries outside all keys
    for entry in np.ndindex(*batch):
        own = numbers[entry]
        order = np.argsort(own, kind="stable")
        repeats = own[order[1:]] == own[order[:-1]]
        after[entry][order[1:][repeats]] = order[:-1][repeats] + 1
    of_queries = np.broadcast_to(positions.of_queries(), (*batch, positions.q_len))
    is_key = (of_queries >= 0) & (of_queries < kv_len)
    return np.take_along_axis(after, np.where(is_key, of_queries, kv_len), axis=-1)


def token_numbers(tokens: ArrayLike) -> Array:
    """Return a number for each token; equal texts have equal numbers."""
    array = as_array("tokens", tokens)
    if array.dtype.kind not in "UT" and not (
        array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat)
    ):
        return integers("tokens", tokens, "an array of integers or texts", any_size=True)
    _, numbers = np.unique(array, return_inverse=True)
    return numbers.reshape(array.shape)


class PackedSequence(NamedTuple):
    """One packed sequence: its rows, and the positions of its queries."""

    queries: slice
    keys: slice
    positions: Positions


def sequences_of(
    query_starts: ArrayLike, key_starts: ArrayLike, options: Mapping[str, Any]
) -> Iterator[PackedSequence]:
    """Iterate over packed sequences, whose starts and options have been checked."""
    queries, keys = (np.asarray(starts).tolist() for starts in (query_starts, key_starts))
    count = len(queries) - 1
    for i in range(count):
        own_queries, own_keys = slice(*queries[i : i + 2]), slice(*keys[i : i + 2])
        own = {
            name: np.broadcast_to(np.asarray(value), (count,))[i]
            if OPTIONS[name].axes == ("batch",) and value is not None and not isinstance(value, str)
            else value
            for name, value in options.items()
        }
        q_len, kv_len = own_queries.stop - own_queries.start, own_keys.stop - own_keys.start
        yield PackedSequence(own_queries, own_keys, Positions.of(own, q_len, kv_len))
