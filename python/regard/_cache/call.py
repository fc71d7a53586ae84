"""The kernels' call, over rows as caches store them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import _core
from regard._arrays import as_mask, as_stored_arrays

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.rows import Rows

    Array = NDArray[Any]


class Part(NamedTuple):
    """What one call attends to, and where the queries stand before it."""

    rows: Rows
    kv_len: int
    mask: ArrayLike | None
    query_offset: Any
    window: Any
    key_lengths: Any
    pages: Array | None = None  # of each entry; the rows are those of pages then


def attention(
    query: Array,
    part: Part,
    *,
    is_causal: bool,
    scale: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
    threads: Any = None,
) -> Any:
    """Attend as `scaled_dot_product_attention` does.

    Queries have three or four axes. With three, the batch is 1, and neither `out` nor the results
    have its axis.
    """
    query, mask = _readable(query, part.mask)
    has_batch = query.ndim == 4
    rows = part.rows
    result = _core.attention_cached(
        query if has_batch else query[None],
        rows.key,
        rows.value,
        rows.key_scales,
        rows.value_scales,
        part.pages,
        part.kv_len,
        mask,
        is_causal,
        part.query_offset,
        part.window,
        part.key_lengths,
        scale,
        softcap,
        alibi_slopes,
        sinks,
        return_weights,
        return_lse,
        out[None] if isinstance(out, np.ndarray) and not has_batch else out,
        threads,
    )
    if has_batch:
        return result
    if isinstance(result, tuple):
        output, *more = result
        return (output[0] if out is None else out, *(part[0] for part in more))
    return result[0] if out is None else out


def plan(
    query: Array,
    part: Part,
    *,
    is_causal: bool,
    scale: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    threads: Any = None,
) -> _core._Plan:
    """Return what `attention` would do."""
    query, mask = _readable(query, part.mask)
    rows = part.rows
    return _core.attention_cached_plan(
        query if query.ndim == 4 else query[None],
        rows.key,
        rows.value,
        rows.key_scales,
        rows.value_scales,
        part.pages,
        part.kv_len,
        mask,
        is_causal,
        part.query_offset,
        part.window,
        part.key_lengths,
        scale,
        softcap,
        alibi_slopes,
        sinks,
        threads,
    )


def _readable(query: Array, mask: ArrayLike | None) -> tuple[Array, ArrayLike | None]:
    # Rows are of our own making, and fine.
    if _core.are_native(query, query, query, mask):
        return query, mask
    (query,) = as_stored_arrays(query=query)
    return query, as_mask(mask)
