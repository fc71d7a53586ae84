"""Attention of a layer to packed sequences, with or without a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from regard._arguments.numbers import token_counts
from regard._attention.ragged import scaled_dot_product_attention_ragged
from regard.layers._cached import check_cache, restore

Result = TypeVar("Result")

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from regard.layers._cached import Cache
    from regard.layers._linear import FloatArray
    from regard.layers._rotation import Rotation

    Integers = NDArray[np.int64]


def refuse_with_starts(query: FloatArray, *, is_training: bool, **given: Any) -> None:
    """Raise ValueError for arguments that cannot be combined with `starts`."""
    if is_training:
        raise ValueError(
            "starts must be left out in train() mode: pass mask=regard.masks.documents(...), which "
            "hides the other sequences of a packed text"
        )
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} must be left out with starts")
    if query.ndim != 3:
        raise ValueError(
            f"query must be (tokens, d_model) with starts, got {query.ndim - 3} batch axes"
        )


def attend_packed(
    cache: Cache | None,
    query: FloatArray,
    key: FloatArray,
    value: FloatArray,
    starts: ArrayLike,
    *,
    rotation: Rotation | None,
    options: dict[str, Any],
    finish: Callable[[Any], Result],
) -> Result:
    """Attend with the queries of packed sequences, after appending keys and values to a cache.

    Arrays are (heads, tokens, head_dim), and so is the output that `finish` gets.
    """
    before: Integers | None = None
    if cache is not None:
        check_cache(cache)
        before = cache.lengths
    tokens = query.shape[-2]
    counts = token_counts(starts, "query", tokens, None if before is None else before.size)
    if rotation is not None:
        first = counts.cumsum() - counts
        places = np.repeat((0 if before is None else before) - first, counts) + np.arange(tokens)
        rotation.turn((query, places), (key, places), cached=cache is not None)
    query, key, value = (array.swapaxes(0, 1) for array in (query, key, value))
    options = {name: option for name, option in options.items() if option is not None}
    if cache is None or before is None:
        result: Any = scaled_dot_product_attention_ragged(
            query, key, value, starts, starts, **options
        )
        return finish(_with_heads_first(result))
    try:
        cache.append_ragged(key, value, starts)
        return finish(_with_heads_first(cache.attend_ragged(query, starts, **options)))
    except BaseException:
        restore(cache, before)
        raise


def _with_heads_first(result: Any) -> Any:
    """Return the result of a call with an output of (heads, tokens, value_dim)."""
    if isinstance(result, tuple):
        return result[0].swapaxes(0, 1), *result[1:]
    return result.swapaxes(0, 1)
