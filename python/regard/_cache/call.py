"""The kernels' call, over rows as caches store them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import _core
from regard._arrays import as_masks, as_stored_arrays

if TYPE_CHECKING:
    from collections.abc import Callable

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


def attention(query: Array, part: Part, options: dict[str, Any]) -> Any:
    """Attend as `scaled_dot_product_attention` does.

    Queries have three or four axes. With three, the batch is 1, and neither `out` nor the results
    have its axis.
    """
    if query.ndim == 4:
        return _called(_core.attention_cached, query, part, options)
    out = options.get("out")
    if isinstance(out, np.ndarray):
        options = options | {"out": out[None]}
    result = _called(_core.attention_cached, query[None], part, options)
    if isinstance(result, tuple):
        output, *more = result
        return (output[0] if out is None else out, *(each[0] for each in more))
    return result[0] if out is None else out


def plan(query: Array, part: Part, options: dict[str, Any]) -> _core._Plan:
    """Return what `attention` would do."""
    query = query if query.ndim == 4 else query[None]
    found: _core._Plan = _called(_core.attention_cached_plan, query, part, options)
    return found


def _called(call: Callable[..., Any], query: Array, part: Part, options: dict[str, Any]) -> Any:
    options = options | {
        "query_offset": part.query_offset,
        "window": part.window,
        "key_lengths": part.key_lengths,
    }
    rows = part.rows
    arrays = rows.key, rows.value, rows.key_scales, rows.value_scales, part.pages, part.kv_len
    result = call(query, *arrays, part.mask, options)
    if result is NotImplemented:
        (query,) = as_stored_arrays(query=query)
        result = call(query, *arrays, as_masks(part.mask), options)
    return result
