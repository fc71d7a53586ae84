"""The visible tokens of a cache that keeps its first and last tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.masks import Masks, is_sparse
from regard._arguments.numbers import batch_integers, offsets, window_sides
from regard.masks import Ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.state import PerEntry, State

    Array = NDArray[Any]
    Sides = tuple[int | None, int | None]


class VisibleTokens(NamedTuple):
    """Arguments of the kernels that determine the visible tokens."""

    pages: Array
    evicted: PerEntry
    keep_first: int
    window: Any
    mask: Any


def visible(
    state: State, geometry: Geometry, window: Sides | None, mask: Any, offset: Any, q_len: PerEntry
) -> VisibleTokens:
    """Combine the window of a cache with the option `window`, which narrows it.

    `q_len` is an array if queries are packed.
    """
    assert geometry.keep_last is not None
    reach, first_tokens = geometry.keep_last - 1, geometry.keep_first
    if window is None:
        return VisibleTokens(state.pages, state.evicted, first_tokens, (reach, None), mask)
    left, right = window_sides(window)
    sides = (reach if left is None else min(left, reach), right)
    if not first_tokens or left is None:
        return VisibleTokens(state.pages, state.evicted, first_tokens, sides, mask)
    # A query does not see the first tokens that are more than `left` positions before it.
    first = offsets(offset, np.asarray(state.lengths - q_len))
    first = np.broadcast_to(batch_integers("query_offset", first, (state.batch,)), (state.batch,))
    if int((first + q_len).max()) - 1 <= left:
        return VisibleTokens(state.pages, state.evicted, first_tokens, sides, mask)
    kept = (geometry.first_pages + state.all_evicted()) * geometry.page_size
    if left <= reach and (first - left >= kept).all():
        hidden = geometry.first_pages
        return VisibleTokens(state.pages[:, hidden:], state.evicted + hidden, 0, sides, mask)
    seen = _seen_first_tokens(first, q_len, left, first_tokens, state.longest)
    shown = _with_mask(seen, mask, is_packed=not isinstance(q_len, int))
    return VisibleTokens(state.pages, state.evicted, first_tokens, sides, shown)


def _seen_first_tokens(
    first: Array, q_len: PerEntry, left: int, first_tokens: int, kv_len: int
) -> Ranges:
    """Return a mask that hides the first tokens that the option's window does not reach."""
    if not isinstance(q_len, int):
        starts = np.cumsum(q_len) - q_len
        positions = np.repeat(first - starts, q_len) + np.arange(q_len.sum())
    elif len(first) == 1:
        positions = first + np.arange(q_len)  # the query may have no batch axis
    else:
        positions = first[:, None, None] + np.arange(q_len)
    return Ranges(np.minimum(positions - left, first_tokens), kv_len, kv_len=kv_len)


def _with_mask(seen: Ranges, mask: Any, *, is_packed: bool) -> Any:
    """Return a mask that also hides the keys that `seen` hides."""
    masks = Masks.of(mask)
    shown: Any = seen
    if is_sparse(masks.shown):
        shown = seen & masks.shown
    elif masks.shown is not None:
        dense = seen.to_dense(max_bytes=2**62)
        shown = (dense[:, None] if is_packed else dense) & masks.shown  # (tokens, heads, keys)
    return Masks(shown, masks.bias).argument
