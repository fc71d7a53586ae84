"""Attention behind the keys and values of earlier calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from regard._arrays import as_array

Result = TypeVar("Result")

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray
    from regard.layers._rotation import Rotation

    class Cache(Protocol):
        """What a layer asks of a `regard.KVCache`."""

        @property
        def lengths(self) -> NDArray[np.int64]:
            """How many tokens each batch entry has seen."""

        def append(
            self, key: FloatArray, value: FloatArray, lengths: ArrayLike | None = None
        ) -> Any:
            """Put new keys and values behind the others: of each entry, the first `lengths`."""

        def attend(self, query: FloatArray, **options: Any) -> Any:
            """Attend from the last positions to all."""

        def truncate(self, length: Any) -> Any:
            """Forget what lies at `length` and beyond."""


def refuse_offset(query_offset: ArrayLike) -> None:
    """Raise ValueError where an offset is given beside a cache."""
    if type(query_offset) is int and query_offset == 0:
        return
    if np.any(as_array("query_offset", query_offset) != 0):
        raise ValueError("query_offset must be left out beside a cache, which knows it")


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
    """Append keys and values, attend, `finish`, and leave the cache as it was if that fails."""
    before = np.array(cache.lengths)
    batch = query.shape[:-3]
    if batch != before.shape and not (batch == () and before.size == 1):
        raise ValueError(
            f"query must have the batch axis of its cache, {before.shape}, got batch axes {batch}"
        )
    if rotation is not None:
        # Most batches are of one length; then one row of positions does for all.
        first = before[:, None] if batch and before.size > 1 else before[0]
        places = first + np.arange(query.shape[-2])
        rotation.turn((query, places), (key, places), cached=True)
    options = {name: option for name, option in options.items() if option is not None}
    if new_lengths is not None:
        new_lengths = np.broadcast_to(new_lengths, before.shape)
        # The cache aligns the last query with the last key, which is not so where rows are short.
        options["query_offset"] = before
    if key.shape[-2] > 0:
        cache.append(key, value, lengths=new_lengths)
    try:
        return finish(cache.attend(query, **options))
    except BaseException:
        same = before.size > 0 and (before == before[0]).all()
        cache.truncate(int(before[0]) if same else before)
        raise
