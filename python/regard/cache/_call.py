"""The kernels' call, over rows as caches store them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._inputs import as_mask
from regard._storage import as_stored_arrays

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.cache._rows import Rows

    Array = NDArray[Any]


def attention(
    query: Array,
    rows: Rows,
    kv_len: int,
    mask: ArrayLike | None,
    *,
    pages: Array | None = None,
    is_causal: bool,
    query_offset: Any,
    window: Any,
    key_lengths: Any,
    scale: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
    threads: Any = None,
) -> Any:
    """Attend to `kv_len` keys as `scaled_dot_product_attention` does.

    Queries have three or four axes. With three, the batch is 1, and neither `out` nor the results
    have its axis. With `pages`, rows are those of pages, and these are the pages of each entry.
    """
    # Rows are of our own making, and fine.
    if not _core.are_readable(query, query, query, mask):
        (query,), mask = as_stored_arrays(query=query), as_mask(mask)
    has_batch = query.ndim == 4
    result = _core.attention_cached(
        query if has_batch else query[None],
        rows.key,
        rows.value,
        rows.key_scales,
        rows.value_scales,
        pages,
        kv_len,
        mask,
        is_causal,
        query_offset,
        window,
        key_lengths,
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
