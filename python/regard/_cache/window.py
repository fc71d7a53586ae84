"""What queries see of a cache that has a window: the sink tokens and their own window's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.masks import Masks
from regard._arguments.numbers import window_sides

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry
    from regard._cache.state import PerEntry, State

    Array = NDArray[Any]
    Sides = tuple[int | None, int | None]


class Visible(NamedTuple):
    """Pages, and what the kernels are told of them."""

    pages: Array
    evicted: PerEntry
    sink_tokens: int
    window: Any
    mask: Any


def visible(
    state: State, geometry: Geometry, window: Sides | None, mask: Any, offset: Any, q_len: int
) -> Visible:
    """Combine a cache's window with the option `window`, which narrows it."""
    if geometry.window is None:
        return Visible(state.pages, state.evicted, 0, window, mask)
    reach, sinks = geometry.window - 1, geometry.sink_tokens
    if window is None:
        return Visible(state.pages, state.evicted, sinks, (reach, None), mask)
    left, right = window_sides(window)
    sides = (reach if left is None else min(left, reach), right)
    if not sinks or left is None:
        return Visible(state.pages, state.evicted, sinks, sides, mask)
    # A query does not see the sink tokens that lie more than `left` before it.
    first = state.lengths - q_len if isinstance(offset, str) else offset
    first = np.broadcast_to(np.asarray(first), (state.batch,))
    if int(first.max()) + q_len - 1 <= left:
        return Visible(state.pages, state.evicted, sinks, sides, mask)
    kept = (geometry.sink_pages + state.all_evicted()) * geometry.page_size
    if left <= reach and (first - left >= kept).all():
        hidden = geometry.sink_pages
        return Visible(state.pages[:, hidden:], state.evicted + hidden, 0, sides, mask)
    seen = _seen_sinks(first, q_len, left, sinks, state.longest)
    return Visible(state.pages, state.evicted, sinks, sides, _with_mask(seen, mask))


def _seen_sinks(first: Array, q_len: int, left: int, sinks: int, kv_len: int) -> Array:
    """Return a mask that hides the sink tokens that the option's window does not reach."""
    positions = first[:, None, None, None] + np.arange(q_len)[:, None]
    keys = np.arange(kv_len)
    seen: Array = (keys >= sinks) | (keys >= positions - left)
    return seen


def _with_mask(seen: Array, mask: Any) -> Any:
    """Return a mask that hides also what `seen` does not show."""
    masks = Masks.of(mask)
    shown = seen if masks.shown is None else seen & masks.shown
    return Masks(shown, masks.bias).argument
