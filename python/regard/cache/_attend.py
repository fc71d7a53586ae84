"""Attention over what a cache holds: rows side by side, in a ring, or in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.cache import _call, _window
from regard.cache._paged import PagedContent

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.cache._content import Content

    Array = NDArray[Any]


def attend(
    content: Content | PagedContent,
    query: Array,
    mask: ArrayLike | None,
    *,
    query_offset: ArrayLike | None,
    **options: Any,
) -> Any:
    """Attend with the queries of the last positions, or of those that an offset says."""
    if not isinstance(content, PagedContent) and content.geometry.window is not None:
        return _window.attend(content, query, mask, query_offset=query_offset, **options)
    lengths = content.longest if content.is_uniform else content.lengths
    options["query_offset"] = lengths - query.shape[-2] if query_offset is None else query_offset
    options["key_lengths"] = None if content.is_uniform else lengths
    if isinstance(content, PagedContent):
        rows, options["pages"] = content.pool.rows, content.table
    else:
        rows = content.slots.rows
    return _call.attention(query, rows, content.longest, mask, **options)
