"""Attention of a layer to a cache, and of packed sequences."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.numbers import batch_integers, repeat, token_counts
from regard._attention.ragged import scaled_dot_product_attention_ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import ArrayLike

    from regard.layers._linear import FloatArray
    from regard.layers._rotation import Rotation


# Options of padded batches, which packed sequences do not have.
_PADDED = ("query_offset", "key_lengths", "left_padding")

# A KVCache, a LayerCache, or any object with their lengths, append, attend and truncate, and for
# packed sequences append_ragged and attend_ragged.
Cache: TypeAlias = Any


@contextmanager
def restored_after_errors(cache: Cache | None) -> Iterator[None]:
    """Remove the tokens that a block appends to a cache if the block fails."""
    if cache is None:
        yield
        return
    if not hasattr(cache, "lengths") or not hasattr(cache, "append"):
        advice = ": pass caches[layer]" if hasattr(cache, "rollback") else ""
        raise TypeError(f"cache must be a KVCache, got {type(cache).__name__}{advice}")
    before = cache.lengths
    try:
        yield
    except BaseException:
        if (cache.lengths != before).any():
            cache.truncate(before)
        raise


def attend_cached(
    cache: Cache,
    query: FloatArray,
    key: FloatArray,
    value: FloatArray,
    rotation: Rotation | None,
    options: dict[str, Any],
) -> Any:
    """Append keys and values to a cache, and attend to it."""
    query_offset, key_lengths, left_padding = (options.pop(name, None) for name in _PADDED)
    if left_padding is not None:
        raise ValueError(
            "left_padding must be left out with a cache: pad on the right, and pass key_lengths"
        )
    if query_offset is not None and (
        isinstance(query_offset, str) or np.any(as_array("query_offset", query_offset) != 0)
    ):
        raise ValueError("query_offset must be left out with a cache, which determines it")
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
    new_lengths = None
    if key_lengths is not None:
        new = key.shape[-2]
        numbers = batch_integers("key_lengths", key_lengths, before.shape)
        for number in numbers.flat:
            if not 0 <= number <= new:
                raise ValueError(f"key_lengths must be from 0 to {new}, the new keys, got {number}")
        new_lengths = np.broadcast_to(numbers, before.shape)
        # The cache would align the last query with the last key, which is wrong for short entries.
        options["query_offset"] = before
    if key.shape[-2] > 0:
        cache.append(key, value, lengths=new_lengths)
    return cache.attend(query, **options)


def refuse_in_train_mode(cache: Any, starts: Any, precision: Any) -> None:
    """Raise ValueError for arguments of a call that has no gradients."""
    if cache is not None:
        raise ValueError(
            "cache must be left out in train() mode, which computes no gradients of the contents "
            "of a cache: call eval() first"
        )
    if starts is not None:
        raise ValueError(
            "starts must be left out in train() mode: pass mask=regard.masks.documents(...), which "
            "hides the other sequences of a packed text"
        )
    if precision == "int8":
        raise ValueError(
            "precision must be None or 'bfloat16' in train() mode, got 'int8', which has no "
            "gradients"
        )


def refuse_with_starts(query: FloatArray, given: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments that cannot be combined with `starts`."""
    for name in ("key", "value", *_PADDED):
        if given.get(name) is not None:
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
    rotation: Rotation | None,
    options: dict[str, Any],
) -> Any:
    """Attend with the queries of packed sequences, after appending keys and values to a cache.

    Arrays are (heads, tokens, head_dim), and so is the output.
    """
    before = None if cache is None else cache.lengths
    tokens = query.shape[-2]
    counts = token_counts(starts, "query", tokens, None if before is None else before.size)
    if rotation is not None:
        first = counts.cumsum() - counts
        places = repeat((0 if before is None else before) - first, counts) + np.arange(tokens)
        rotation.turn((query, places), (key, places), cached=cache is not None)
    query, key, value = (array.swapaxes(0, 1) for array in (query, key, value))
    options = {name: option for name, option in options.items() if option is not None}
    result: Any
    if cache is None:
        result = scaled_dot_product_attention_ragged(query, key, value, starts, starts, **options)
    else:
        cache.append_ragged(key, value, starts)
        result = cache.attend_ragged(query, starts, **options)
    if isinstance(result, tuple):
        return result[0].swapaxes(0, 1), *result[1:]
    return result.swapaxes(0, 1)
