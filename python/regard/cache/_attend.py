"""Attention over what a cache holds: rows side by side, in a ring, or in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.cache import _call, _window
from regard.cache._arguments import mask_of_all
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
    offset = lengths - query.shape[-2] if query_offset is None else query_offset
    if isinstance(content, PagedContent):
        return _in_pages(content, query, mask, lengths, query_offset=offset, **options)
    slots = content.slots
    return _call.attention(
        query,
        slots.rows.part(np.s_[:, :, : content.longest]),
        mask,
        centers=slots.centers,
        query_offset=offset,
        key_lengths=None if content.is_uniform else lengths,
        **options,
    )


def _in_pages(
    content: PagedContent, query: Array, mask: ArrayLike | None, lengths: Any, **options: Any
) -> Any:
    """Attend to whole pages, of which the lengths say how much counts."""
    table = content.table
    behind = table.shape[1] * content.page_size - content.longest
    seen = mask_of_all(mask, content.longest)
    if seen is not None and seen.ndim and seen.shape[-1] != 1 and behind:
        seen = np.pad(seen, [(0, 0)] * (seen.ndim - 1) + [(0, behind)])
    result = _call.attention(
        query,
        content.pool.rows,
        seen,
        centers=content.centers,
        pages=table,
        key_lengths=lengths,
        **options,
    )
    if options["return_weights"]:
        output, weights, *lse = result
        return output, weights[..., : content.longest], *lse
    return result
