"""One head of a call, so that the others need not be computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_OF_ENTRIES = ("query_offset", "key_lengths", "left_padding")


def one_head(
    query: Array, key: Array, mask: Any, options: dict[str, Any], head: tuple[int, ...]
) -> tuple[Array, Array, Any, dict[str, Any]]:
    """Return the arguments of a call that computes one head of a call that has been checked.

    `head` has the place of a batch entry, and then the number of a query head; it is empty where
    query and key have two axes.
    """
    if not head:
        return query, key, mask, options
    *entry, number = head
    batch = np.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    heads, kv_heads = query.shape[-3], key.shape[-3]
    own_key = number // (heads // kv_heads)
    rest = query.shape[-2], key.shape[-2]
    masks = tuple(
        np.broadcast_to(part, (*batch, heads, *rest))[head]
        for part in (mask if isinstance(mask, tuple) else (mask,))
        if part is not None
    )
    own = dict(options)
    for name in _OF_ENTRIES:
        if own.get(name) is not None and not isinstance(own[name], str):
            own[name] = int(np.broadcast_to(np.asarray(own[name]), batch)[tuple(entry)])
    if own.get("alibi_slopes") is not None:
        slopes = np.broadcast_to(np.asarray(own["alibi_slopes"]), (*batch, heads))[head]
        own["alibi_slopes"] = slopes[None]
    if own.get("sinks") is not None:
        own["sinks"] = np.asarray(own["sinks"])[number : number + 1]
    return (
        np.broadcast_to(query, (*batch, *query.shape[-3:]))[head],
        np.broadcast_to(key, (*batch, *key.shape[-3:]))[(*entry, own_key)],
        masks if isinstance(mask, tuple) else masks[0] if masks else None,
        own,
    )
