"""Attention over what a cache holds: rows side by side, in a ring, or in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._cache import call
from regard._cache import window as ring_window
from regard._cache.paged import PagedContent

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.content import Content

    Array = NDArray[Any]


def attend(
    content: Content | PagedContent,
    query: Array,
    mask: ArrayLike | None,
    *,
    query_offset: ArrayLike | None,
    window: Any,
    **options: Any,
) -> Any:
    """Attend with the queries of the last positions, or of those that an offset says."""
    if not isinstance(content, PagedContent) and content.geometry.window is not None:
        return ring_window.attend(
            content, query, mask, query_offset=query_offset, window=window, **options
        )
    return call.attention(query, _whole(content, query, mask, query_offset, window), options)


def plans(
    content: Content | PagedContent,
    query: Array,
    mask: ArrayLike | None,
    *,
    query_offset: ArrayLike | None,
    window: Any,
    is_causal: bool,
    sinks: Any,
    **options: Any,
) -> list[tuple[call.Part, Any]]:
    """Return what is attended to, and how: several parts where they are joined."""
    if not isinstance(content, PagedContent) and content.geometry.window is not None:
        parts = ring_window.parts(content, query, mask, query_offset, window, is_causal=is_causal)
    else:
        parts = [_whole(content, query, mask, query_offset, window)]
    return [
        (
            part,
            call.plan(
                query,
                part,
                options | {"is_causal": is_causal, "sinks": sinks if number == 0 else None},
            ),
        )
        for number, part in enumerate(parts)
    ]


def _whole(
    content: Content | PagedContent,
    query: Array,
    mask: ArrayLike | None,
    query_offset: ArrayLike | None,
    window: Any,
) -> call.Part:
    if isinstance(content, PagedContent):
        state = content.state
        longest, is_uniform, each = state.longest, state.is_uniform, state.lengths
        rows, pages = state.rows, state.pages
    else:
        longest, is_uniform, each = content.longest, content.is_uniform, content.lengths
        rows, pages = content.slots.rows, None
    lengths = longest if is_uniform else each
    return call.Part(
        rows,
        longest,
        mask,
        lengths - query.shape[-2] if query_offset is None else query_offset,
        window,
        None if is_uniform else each,
        pages,
    )
