"""Attention of a layer to the keys and values of earlier calls in a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.numbers import batch_integers

Result = TypeVar("Result")

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray
    from regard.layers._rotation import Rotation

    Integers = NDArray[np.int64]

    class Cache(Protocol):
        """The part of `regard.KVCache` that a layer uses."""

        @property
        def lengths(self) -> NDArray[np.int64]:
            """Return the number of tokens that each batch entry has seen."""

        def append(
            self, key: FloatArray, value: FloatArray, lengths: ArrayLike | None = None
        ) -> Any:
            """Append the first `lengths` new keys and values of each entry."""

        def attend(self, query: FloatArray, **options: Any) -> Any:
            """Attend from the last positions to all tokens."""

        def append_ragged(self, key: FloatArray, value: FloatArray, starts: ArrayLike) -> Any:
            """Append packed keys and values."""

        def attend_ragged(self, query: FloatArray, starts: ArrayLike, **options: Any) -> Any:
            """Attend with packed queries."""

        def truncate(self, length: Any) -> Any:
            """Remove the tokens from `length` on."""


def refuse_options_of_cache(query_offset: ArrayLike, left_padding: ArrayLike | None = None) -> None:
    """Raise ValueError for options that cannot be combined with a cache."""
    if left_padding is not None:
        raise ValueError(
            "left_padding must be left out with a cache: pad on the right, and pass key_lengths"
        )
    if type(query_offset) is int and query_offset == 0:
        return
    if isinstance(query_offset, str) or np.any(as_array("query_offset", query_offset) != 0):
        raise ValueError("query_offset must be left out with a cache, which determines it")


def attend_cached(
    cache: Cache,
    query: FloatArray,
    key: FloatArray,
    value: FloatArray,
    *,
    new_lengths: ArrayLike | None,
    rotation: Rotation | None,
    options: dict[str, Any],
    finish: Callable[[Any], Result],
) -> Result:
    """Append keys and values, attend and `finish`; restore the cache if any of this fails."""
    check_cache(cache)
    before = cache.lengths
    batch = query.shape[:-3]
    if batch != before.shape and not (batch == () and before.size == 1):
        raise ValueError(
            f"query must have the batch axis of its cache, {before.shape}, got batch axes {batch}"
        )
    if rotation is not None:
        # If all entries have the same length, as in most batches, one row of positions is enough.
        first = before[:, None] if batch and before.size > 1 else before[0]
        places = first + np.arange(query.shape[-2])
        rotation.turn((query, places), (key, places), cached=True)
    options = {name: option for name, option in options.items() if option is not None}
    if new_lengths is not None:
        new_lengths = _checked_lengths(new_lengths, key.shape[-2], before.shape)
        # The cache would align the last query with the last key, which is wrong for short entries.
        options["query_offset"] = before
    try:
        if key.shape[-2] > 0:
            cache.append(key, value, lengths=new_lengths)
        return finish(cache.attend(query, **options))
    except BaseException:
        restore(cache, before)
        raise


def check_cache(cache: Cache) -> None:
    """Raise TypeError for an object that is not a cache."""
    if not hasattr(cache, "lengths") or not hasattr(cache, "append"):
        advice = ": pass caches[layer]" if hasattr(cache, "rollback") else ""
        raise TypeError(f"cache must be a KVCache, got {type(cache).__name__}{advice}")


def restore(cache: Cache, lengths: Integers) -> None:
    """Remove the tokens that were appended after the cache had these lengths."""
    if (cache.lengths != lengths).any():
        cache.truncate(lengths)


def _checked_lengths(key_lengths: ArrayLike, new: int, batch: tuple[int, ...]) -> Integers:
    """Return the number of real new keys of each entry, or raise TypeError or ValueError."""
    numbers = batch_integers("key_lengths", key_lengths, batch)
    for number in numbers.flat:
        if not 0 <= number <= new:
            raise ValueError(f"key_lengths must be from 0 to {new}, the new keys, got {number}")
    return np.broadcast_to(numbers, batch)
