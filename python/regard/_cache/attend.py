"""Attention to the pages of a cache. Only this module calls its kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._arguments.arrays import as_stored_arrays
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, is_sparse
from regard._arguments.numbers import batch_integers, offsets, repeat, token_counts, window_sides
from regard._arguments.options import CacheExplainOptions, CacheOptions, ResultOptions, names_of
from regard._attention.explanation import FLOAT_MASK, Explanation, distinct_bytes
from regard.masks import Ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from regard._cache.geometry import LayerGeometry

    Array = NDArray[Any]


_OPTIONS = frozenset(names_of(CacheOptions, ResultOptions))
_EXPLAIN_OPTIONS = frozenset(names_of(CacheExplainOptions))


def attend(
    pages: _core.LayerPages,
    geometry: LayerGeometry,
    method: str,
    query: Any,
    starts: Any,
    mask: Any,
    options: dict[str, Any],
) -> Any:
    """Attend with queries at the last positions, or from a query offset on.

    If there are `starts`, the queries of all entries are packed.
    """
    if options:
        if not _OPTIONS.issuperset(options):
            check_options(f"KVCache.{method}", options, _OPTIONS)
        mask = prepared(pages, geometry, query, starts, mask, options)
    return call(_core.attention_cached, pages, query, starts, mask, options)


def explain(
    pages: _core.LayerPages,
    geometry: LayerGeometry,
    query: Any,
    starts: Any,
    mask: Any,
    options: dict[str, Any],
) -> Explanation:
    """Report what `attend` would compute with these arguments, and how."""
    check_options("KVCache.explain", options, _EXPLAIN_OPTIONS)
    shown = prepared(pages, geometry, query, starts, mask, options)
    plan: _core._Plan = call(_core.attention_cached_plan, pages, query, starts, shown, options)
    (query,) = as_stored_arrays(query=query)
    stored, notes = geometry.dtype, []
    if stored.is_quantized:
        notes.append(f"keys and values are {stored.note}")
    elif stored.dtype != query.dtype:
        notes.append(f"keys and values are stored as {stored.name}")
    notes.append(f"keys and values are in pages of {geometry.page_size} tokens")
    masks = Masks.of(shown)
    if masks.bias is not None:
        notes.append(FLOAT_MASK)
    tokens = int((pages.lengths - pages.evicted * geometry.page_size).sum())
    row_bytes = sum(math.prod(shape) * dtype.itemsize for dtype, shape in geometry.forms)
    bytes_read = distinct_bytes(query) + sum(map(distinct_bytes, masks.arrays))
    bytes_read += tokens * row_bytes // geometry.page_size
    packed = None
    if starts is not None:
        packed = np.asarray(starts), np.concatenate([[0], pages.lengths.cumsum()])
    key, value = pages.arrays[:2]
    arguments = plan, key, value, options.get("precision"), bytes_read, notes, masks, packed
    quantized = stored.name if stored.is_quantized else None
    return Explanation.of_plan(*arguments, quantized=quantized)


def call(
    function: Callable[..., Any],
    pages: _core.LayerPages,
    query: Any,
    starts: Any,
    mask: Any,
    options: dict[str, Any],
) -> Any:
    """Call a kernel of attention to pages, with arguments that it can read."""
    if mask is not None:
        warn_if_zero_one(mask)
    result = function(query, starts, pages, mask, options)
    if result is NotImplemented:  # the kernels cannot read these arrays directly
        (query,) = as_stored_arrays(query=query)
        result = function(query, starts, pages, Masks.of(mask).argument, options)
    return result


def prepared(
    pages: _core.LayerPages,
    geometry: LayerGeometry,
    query: Any,
    starts: Any,
    mask: Any,
    options: dict[str, Any],
) -> Any:
    """Convert the options, and return the mask, which may also hide first tokens."""
    options.update(with_arrays(options))
    if options.get("query_offset", 0) is None:
        del options["query_offset"]
    if not geometry.keep_first or options.get("window") is None or np.ndim(query) < 3:
        return mask
    left, _ = window_sides(options["window"])
    if left is None:
        return mask
    # A query does not see the first tokens that are more than `left` positions before it.
    lengths = pages.lengths
    q_len: Any = np.shape(query)[-2]
    if starts is not None:
        q_len = token_counts(starts, "query", len(query), len(lengths))
    first = offsets(options.get("query_offset", "end"), lengths - q_len)
    first = np.broadcast_to(batch_integers("query_offset", first, lengths.shape), lengths.shape)
    if int((first + q_len).max(initial=0)) - 1 <= left:
        return mask
    if starts is not None:
        before = np.cumsum(q_len) - q_len
        positions = repeat(first - before, q_len) + np.arange(q_len.sum())
    elif len(first) == 1:
        positions = first + np.arange(q_len)  # the query may have no batch axis
    else:
        positions = first[:, None, None] + np.arange(q_len)
    kv_len = pages.longest
    seen = Ranges(np.minimum(positions - left, geometry.keep_first), kv_len, kv_len=kv_len)
    return _with_mask(seen, mask, is_packed=starts is not None)


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
