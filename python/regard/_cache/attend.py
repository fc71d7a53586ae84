"""Attention to the state of a cache. Only this module calls the attention kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from regard import _core
from regard._arguments.arrays import as_stored_arrays
from regard._arguments.foreign import with_arrays
from regard._arguments.masks import Masks
from regard._arguments.numbers import token_counts
from regard._cache import arguments
from regard._cache.window import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from regard._cache.layer import Layer
    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.rows import LayerRows
    from regard._cache.storage.state import PerEntry, State

    Array = NDArray[Any]


class Attended(Protocol):
    """Keys and values in pages: a layer of a cache, or the pages of another engine."""

    @property
    def state(self) -> State | None:
        """The pages and lengths of all entries."""

    @property
    def geometry(self) -> Geometry:
        """The sizes, and the limits of a cache."""

    @property
    def rows(self) -> LayerRows:
        """The pages."""

    @property
    def may_be_empty(self) -> bool:
        """Whether there may be no tokens, which is an error for a cache."""


class CachedCall(NamedTuple):
    """The arguments of the kernels, without the options."""

    query: Array
    starts: Any  # of packed queries, or None
    rows: LayerRows
    pages: Array
    evicted: PerEntry
    keep_first: int
    kv_len: int
    mask: Any


def attend(
    layer: Attended, query: ArrayLike, starts: Any, mask: Any, options: dict[str, Any]
) -> Any:
    """Attend with queries at the last positions, or from a query offset on.

    If there are `starts`, the queries of all entries are packed.
    """
    options = with_arrays(options)
    return _called(_core.attention_cached, _call(layer, query, starts, mask, options), options)


def plan(
    layer: Layer, query: ArrayLike, starts: Any, mask: Any, options: dict[str, Any]
) -> tuple[CachedCall, _core._Plan]:
    """Return the arguments of the kernels in `attend`, and the plan of the computation."""
    options = with_arrays(options)
    call = _call(layer, query, starts, mask, options)
    found: _core._Plan = _called(_core.attention_cached_plan, call, options)
    return call, found


def _called(function: Callable[..., Any], call: CachedCall, options: dict[str, Any]) -> Any:
    query, starts, rows, *pages, mask = call
    result = function(query, starts, rows.core, *pages, mask, options)
    if result is NotImplemented:  # the kernels cannot read these arrays directly
        (query,) = as_stored_arrays(query=query)
        result = function(query, starts, rows.core, *pages, Masks.of(mask).argument, options)
    return result


def _call(
    layer: Attended, query: Any, starts: Any, mask: Any, options: dict[str, Any]
) -> CachedCall:
    """Return the arguments of the kernels, and complete the options from the cache."""
    options.setdefault("is_causal", True)
    state, geometry = layer.state, layer.geometry
    assert state is not None
    if starts is None:
        query = arguments.fitting_query(geometry, state.batch, query)
        queries = query.shape[-2]
    else:
        query = arguments.fitting_packed_query(geometry, query)
        queries = len(query)
    if state.longest == 0 and queries and state.batch and not layer.may_be_empty:
        raise ValueError(
            "the cache is empty: append keys and values first, also for the queries' own tokens"
        )
    q_len: PerEntry = queries
    if starts is not None and geometry.keep_last is not None:
        q_len = token_counts(starts, "query", queries, state.batch)
    if options.get("query_offset") is None:
        if starts is None:
            options["query_offset"] = _default_offset(state, queries, options)
        else:
            options["query_offset"] = "end" if geometry.keep_last is None else state.lengths - q_len
    options["key_lengths"] = None if isinstance(state.lengths, int) else state.lengths
    if geometry.keep_last is None:
        return CachedCall(query, starts, layer.rows, state.pages, 0, 0, state.longest, mask)
    seen = visible(state, geometry, options.get("window"), mask, options["query_offset"], q_len)
    options["window"] = seen.window
    return CachedCall(
        query,
        starts,
        layer.rows,
        seen.pages,
        seen.evicted,
        seen.keep_first,
        state.longest,
        seen.mask,
    )


def _default_offset(state: State, q_len: int, options: dict[str, Any]) -> PerEntry:
    """Return the position of the first query if the queries belong to the last tokens."""
    lengths, recent = state.lengths, state.recent
    if q_len > state.longest and options["is_causal"] and state.batch:
        raise ValueError(
            f"query_offset must be given: {q_len} queries do not belong to the last tokens "
            f"of a cache of {state.longest}; append their keys and values before attending"
        )
    if recent is not None and q_len > 1 and int(recent.min()) < q_len:
        raise ValueError(
            f"query_offset must be given: the last append added {recent.tolist()} tokens to the "
            f"batch entries, so {q_len} queries do not belong to the last tokens of each; pass the "
            "lengths before that append as query_offset"
        )
    return lengths - q_len
